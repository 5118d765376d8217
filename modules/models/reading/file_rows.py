"""A weight that lies in one row in a file: read in slices, or mapped."""

import math
import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.memory.formats.format import row_width
from modules.memory.scratch import scratch
from modules.models.closing import Closing
from modules.models.reading.tensor_file import REMEDY


class OpenFile(Closing):
    """A file that several threads read at once. Raises `CheckpointError` where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise CheckpointError(
                f"{path.name}: cannot be opened ({error.strerror}). Check that it is there and readable."
            ) from error
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close it; what was read or mapped stays valid."""
        os.close(self._handle)

    def read_into(self, target: Tensor, begin: int, name: str) -> None:
        """The bytes from `begin` on into all of `target`, contiguous and on the CPU; `name` is for the error."""
        view = memoryview(target.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        while view:
            count = self._read_some(view, begin)
            if not count:
                raise CheckpointError(f"{self.path.name}: the file ends inside of the tensor {name!r}. {REMEDY}")
            view, begin = view[count:], begin + count

    def _read_some(self, view: memoryview, begin: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._handle, [view], begin)
        with self._lock:
            os.lseek(self._handle, begin, os.SEEK_SET)
            part = os.read(self._handle, len(view))
        view[: len(part)] = part
        return len(part)

    def mapped(self, begin: int, size_bytes: int) -> tuple[mmap.mmap, int] | None:
        """Pages of the file that hold these bytes, and where in them they begin; None where the system refuses. What is
        written to them stays in this process."""
        start = begin - begin % mmap.ALLOCATIONGRANULARITY
        try:
            pages = mmap.mmap(self._handle, begin - start + size_bytes, access=mmap.ACCESS_COPY, offset=start)
        except OSError:  # file systems that cannot, bounds on the memory: it will be read
            return None
        return pages, begin - start


@dataclass(frozen=True)
class FileRows:
    """`Rows` of a weight of this dtype and shape that begins at the byte `begin`; `name` is for errors."""

    file: OpenFile
    begin: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    name: str

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def size_bytes(self) -> int:
        """Bytes of the weight in its file."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def can_be_mapped(self) -> bool:
        """Whether the numbers are aligned in the file, as CPUs want them."""
        return self.begin % self.dtype.itemsize == 0

    def read(self, begin: int, end: int) -> Tensor:
        """See `Rows`; every call of a thread uses the same memory."""
        width = row_width(self.shape)
        part = scratch((end - begin, width), self.dtype)
        self.file.read_into(part, self.begin + begin * width * self.dtype.itemsize, self.name)
        return part

    def whole(self) -> Tensor:
        """The weight in memory of its own."""
        weight = torch.empty(self.shape, dtype=self.dtype)
        if weight.numel():
            self.file.read_into(weight, self.begin, self.name)
        return weight

    def mapped(self) -> Tensor | None:
        """The weight as pages of the file, which are read when they are used; None where the system refuses."""
        found = self.file.mapped(self.begin, self.size_bytes)
        if found is None:
            return None
        count = math.prod(self.shape)
        return torch.frombuffer(found[0], dtype=self.dtype, count=count, offset=found[1]).view(self.shape)
