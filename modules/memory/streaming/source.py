"""Where streamed weights rest: in main memory, or in a part of a file that is read in place."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from modules.errors import CheckpointError

SEPARATE_BYTES = 1 << 12  # runs of so many bytes are read one by one, shorter ones with what is between them
BLOCK_BYTES = 1 << 20  # at a time


@dataclass(frozen=True)
class Runs:
    """`count` runs of `length` bytes; the first begins at byte `begin` of a weight, each `stride` after the one
    before it. Rows of a weight are one run, columns are one run in each row."""

    begin: int
    length: int
    count: int = 1
    stride: int = 0

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all runs."""
        return self.length * self.count


class Source(Protocol):
    """The bytes of one weight, wherever they are."""

    @property
    def dtype(self) -> torch.dtype:
        """Return the stored dtype; it may be narrower than the weight's own (fp16 in a file, for a model in fp32)."""

    @property
    def shape(self) -> torch.Size:
        """The weight's."""

    def read_into(self, target: Tensor) -> None:
        """Write the bytes into `target`, uint8 [size] on the CPU. Any thread may call it."""

    def read_runs(self, runs: Runs, target: Tensor) -> None:
        """Write a part of the bytes, run after run, into `target`, as `read_into`."""


def size_bytes(source: Source) -> int:
    """How many bytes `Source.read_into` writes."""
    return source.shape.numel() * source.dtype.itemsize


def read(source: Source) -> Tensor:
    """The weight in memory of its own, on the CPU, in the dtype in which it is stored."""
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

    def read_runs(self, runs: Runs, target: Tensor) -> None:
        target.view(runs.count, runs.length).copy_(in_runs(as_bytes(self.tensor), runs))


def in_runs(data: Tensor, runs: Runs) -> Tensor:
    """A view [count, length] of bytes [size]."""
    begin = data.storage_offset() + runs.begin
    return data.as_strided((runs.count, runs.length), (runs.stride or runs.length, 1), begin)


@dataclass
class PartSource:
    """Some rows or columns of a weight whose own source may change: `whole` says where it is stored now."""

    whole: Callable[[], Source]
    dimension: int
    start: int
    stop: int

    @property
    def dtype(self) -> torch.dtype:
        return self.whole().dtype

    @property
    def shape(self) -> torch.Size:
        shape = list(self.whole().shape)
        shape[self.dimension] = self.stop - self.start
        return torch.Size(shape)

    def read_into(self, target: Tensor) -> None:
        self.read_runs(Runs(0, target.numel()), target)

    def read_runs(self, runs: Runs, target: Tensor) -> None:
        whole = self.whole()
        assert runs == Runs(0, target.numel()), "a part is read as a whole"
        whole.read_runs(self._runs(whole), target)

    def _runs(self, whole: Source) -> Runs:
        unit = whole.shape[self.dimension + 1 :].numel() * whole.dtype.itemsize  # of one row or column
        length, stride = (self.stop - self.start) * unit, whole.shape[self.dimension] * unit
        count = whole.shape[: self.dimension].numel()
        return Runs(self.start * unit, length, count, stride)


def read_file(file: FileIO, begin: int, runs: Runs, target: Tensor) -> bool:
    """Read runs of what begins at byte `begin` of a file into `target`, uint8 [size]; False: the file ends before."""
    view = memoryview(target.numpy())  # type: ignore[arg-type] # numpy arrays are buffers
    begin += runs.begin
    if runs.count == 1 or runs.length >= SEPARATE_BYTES:
        starts = range(0, runs.size_bytes, runs.length)
        return all(
            _read_at(file, begin + index * runs.stride, view[start : start + runs.length])
            for index, start in enumerate(starts)
        )
    at_once = max(1, BLOCK_BYTES // runs.stride)
    block = torch.empty(at_once * runs.stride, dtype=torch.uint8)
    rows = target.view(runs.count, runs.length)
    for first in range(0, runs.count, at_once):
        count = min(at_once, runs.count - first)
        part = block[: (count - 1) * runs.stride + runs.length]
        if not _read_at(file, begin + first * runs.stride, memoryview(part.numpy())):  # type: ignore[arg-type]
            return False
        rows[first : first + count] = in_runs(block, Runs(0, runs.length, count, runs.stride))
    return True


def _read_at(file: FileIO, begin: int, view: memoryview) -> bool:
    file.seek(begin)
    while view:
        count = file.readinto(view)
        if not count:
            return False
        view = view[count:]
    return True


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

    def read_into(self, begin: int, runs: Runs, target: Tensor) -> None:
        """Runs of what begins at byte `begin` into all of `target`, uint8 [size]."""
        with self._lock:
            if self._file is None:
                raise CheckpointError(self._complaint("was closed while its weights were needed"))
            try:
                if self._now(self._file) != self._identity:
                    raise CheckpointError(self._complaint("has changed since it was loaded"))
                if not read_file(self._file, begin, runs, target):
                    raise CheckpointError(self._complaint("has become shorter"))
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
    """A weight that is contiguous in a file, from the byte `begin` on."""

    file: WatchedFile
    begin: int
    dtype: torch.dtype
    shape: torch.Size

    def read_into(self, target: Tensor) -> None:
        self.read_runs(Runs(0, target.numel()), target)

    def read_runs(self, runs: Runs, target: Tensor) -> None:
        self.file.read_into(self.begin, runs, target)
