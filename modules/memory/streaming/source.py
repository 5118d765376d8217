"""Where streamed weights rest: in main memory, or in a part of a file that is read in place."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from modules.errors import CheckpointError


class Source(Protocol):
    """The bytes of one weight, wherever they are."""

    @property
    def dtype(self) -> torch.dtype:
        """As it rests; may be narrower than the weight's own dtype (fp16 in a file, for a model in fp32)."""

    @property
    def shape(self) -> torch.Size:
        """The weight's."""

    def read_into(self, target: Tensor) -> None:
        """Write the bytes into `target`, uint8 [size] on the processor. Any thread may call it."""


def size_bytes(source: Source) -> int:
    """How many bytes `Source.read_into` writes."""
    return source.shape.numel() * source.dtype.itemsize


def read(source: Source) -> Tensor:
    """The weight in memory of its own, on the processor, in the dtype in which it rests."""
    tensor = torch.empty(source.shape, dtype=source.dtype)
    if tensor.numel():
        source.read_into(as_bytes(tensor))
    return tensor


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor, uint8 [size], in the same memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)


@dataclass(frozen=True)
class RamSource:
    """A contiguous tensor in main memory, pinned or not."""

    tensor: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    def read_into(self, target: Tensor) -> None:
        target.copy_(as_bytes(self.tensor))


@dataclass
class WatchedFile:
    """A file that must stay as it was when it was opened first. It is held open, so that its removal does no harm.

    Raises `CheckpointError`, with `remedy` at its end, for a file that was changed, has become shorter, or cannot be
    read.
    """

    path: Path
    remedy: str = "Put the file back as it was, or load the checkpoint again."
    _file: FileIO | None = field(default=None, init=False, repr=False)
    _identity: tuple[int, int] = field(default=(0, 0), init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def open(self) -> WatchedFile:
        """Open it now, and remember its size and time of change."""
        with self._lock:
            try:
                handle = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
                self._close = weakref.finalize(self, os.close, handle)  # also where nobody calls `close`
                self._file = FileIO(handle, closefd=False)
                self._identity = self._now(self._file)
            except OSError as error:
                raise CheckpointError(self._complaint(f"cannot be opened ({error.strerror})")) from error
        return self

    def read_into(self, begin: int, target: Tensor) -> None:
        """The bytes from `begin` on into all of `target`, uint8 [size]."""
        view = memoryview(target.numpy())  # type: ignore[arg-type] # numpy arrays are buffers
        with self._lock:
            if self._file is None:
                raise CheckpointError(self._complaint("was closed while its weights were needed"))
            try:
                if self._now(self._file) != self._identity:
                    raise CheckpointError(self._complaint("has changed since it was loaded"))
                self._file.seek(begin)
                while view:
                    count = self._file.readinto(view)
                    if not count:
                        raise CheckpointError(self._complaint("has become shorter"))
                    view = view[count:]
            except OSError as error:
                raise CheckpointError(self._complaint(f"cannot be read any more ({error.strerror})")) from error

    def close(self) -> None:
        """Close it; what was read stays valid."""
        with self._lock:
            if self._file is not None:
                self._file = None
                self._close()

    @staticmethod
    def _now(file: FileIO) -> tuple[int, int]:
        stat = os.fstat(file.fileno())
        return stat.st_size, stat.st_mtime_ns

    def _complaint(self, what: str) -> str:
        return f"{self.path.name} {what}, and weights are streamed from it. {self.remedy}"


@dataclass(frozen=True)
class FileRegion:
    """A weight that lies in one row in a file, from the byte `begin` on."""

    file: WatchedFile
    begin: int
    dtype: torch.dtype
    shape: torch.Size

    def read_into(self, target: Tensor) -> None:
        self.file.read_into(self.begin, target)
