"""Weights that are contiguous in a file: read in slices or mapped, and encoded ahead of their turn by
one thread per core."""

import math
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.memory.formats.format import Encoded, WeightRows, row_width, slices
from modules.memory.scratch import scratch
from modules.models.files.header import REMEDY
from modules.models.files.tensor_file import Closing
from modules.models.files.tensor_source import TensorSource

Step = TypeVar("Step")
Work = Callable[[], Encoded]

MAX_AHEAD = 2
"""Pieces of work that wait for each thread where what is made leaves the memory at its turn."""
SMALLEST_MAPPED_BYTES = 1 << 20


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


class Preparation(Closing):
    """The files and threads of one load."""

    def __init__(self) -> None:
        self._files: dict[Path, OpenFile] = {}
        self._workers: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Stop the threads and close the files; what is ready stays valid."""
        if self._workers is not None:
            self._workers.shutdown(cancel_futures=True)
        for file in self._files.values():
            file.close()

    def rows(self, file: TensorSource, key: str, shape: torch.Size) -> FileRows:
        """A weight of 16 bits or more that is contiguous in the file, in this shape."""
        entry = file.entries[key]
        path = entry.file or file.path
        if path not in self._files:
            self._files[path] = OpenFile(path)
        return FileRows(self._files[path], entry.begin, entry.dtype, tuple(shape), key)

    def in_order(
        self, steps: Iterable[tuple[Step, Work | Encoded | None]], ahead: int | None = None
    ) -> Iterator[tuple[Step, Encoded | None]]:
        """Each step with what its work made, or with what it has instead of work. Raises what the work raised, at its
        turn.

        `ahead` bounds how much of the work waits for each thread. Without it all does, and no thread stands still while
        this one places what is ready: right where that has its place in the model by then.
        """
        most = math.inf if ahead is None else ahead * torch.get_num_threads()
        waiting: deque[tuple[Step, Future[Encoded] | Encoded | None]] = deque()
        busy = 0
        for step, work in steps:
            waiting.append((step, self._submit(work) if callable(work) else work))
            busy += callable(work)
            while busy > most:
                done, made = waiting.popleft()
                busy -= isinstance(made, Future)
                yield done, made.result() if isinstance(made, Future) else made
        for done, made in waiting:
            yield done, made.result() if isinstance(made, Future) else made

    def _submit(self, work: Work) -> Future[Encoded]:
        if self._workers is None:
            self._workers = one_core_workers()
        return self._workers.submit(work)


def mapped(rows: FileRows, dtype: torch.dtype) -> Encoded | None:
    """A large weight that is in the file as it should be, as pages of the file; None where it cannot be that."""
    if rows.dtype != dtype or not rows.can_be_mapped or rows.size_bytes < SMALLEST_MAPPED_BYTES:
        return None
    weight = rows.mapped()
    return None if weight is None else Encoded(weight)


def as_dtype(rows: FileRows, dtype: torch.dtype, check: Callable[[Tensor], None] | None = None) -> Encoded:
    """A weight that is stored plainly. `check` sees it as it is in the file, at once or in slices."""
    if rows.dtype == dtype:
        weight = rows.whole()
        if check is not None:
            check(weight)
        return Encoded(weight)
    weight = torch.empty(rows.shape, dtype=dtype)
    places: Tensor = WeightRows(weight).read(0, weight.numel())
    for where, part in slices(rows):
        if check is not None:
            check(part)
        places[where] = part
    return Encoded(weight)


_LOCK = threading.Lock()


def one_core_workers(count: int | None = None) -> ThreadPoolExecutor:
    """A pool of `count` threads (None: as many as PyTorch computes with) that compute with one CPU core each, to be
    closed by the caller. PyTorch spreads every operation over all cores, and its threads meet at the end of each: many
    small operations run faster as one stream per core, and where cores are busy the meetings cost up to fifty times
    the work.

    The number of cores that PyTorch uses is each thread's own once it has computed something, and what new threads
    begin with is one number for the process; so that is set to 1 while these threads begin, and then set back.
    """
    count = torch.get_num_threads() if count is None else count
    pool = ThreadPoolExecutor(count, thread_name_prefix="one-core")
    with _LOCK:
        cores = torch.get_num_threads()
        started = threading.Barrier(count + 1)

        def begin() -> None:
            torch.get_num_threads()  # a thread takes over the process's number at its first question
            torch.set_num_threads(1)
            started.wait()

        try:
            for _ in range(count):
                pool.submit(begin)
            started.wait()
        finally:
            torch.set_num_threads(cores)
    return pool
