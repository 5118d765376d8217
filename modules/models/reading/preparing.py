"""Weights read and encoded ahead of their turn, by one thread a core."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from modules.memory.formats import Encoded
from modules.memory.formats.format import WeightRows, slices
from modules.memory.workers import one_core_workers
from modules.models.closing import Closing
from modules.models.reading.file_rows import FileRows, OpenFile
from modules.models.reading.tensor_source import TensorSource

Step = TypeVar("Step")
Work = Callable[[], Encoded]

MAX_AHEAD = 2
"""Pieces of work that wait for each thread where what is made leaves the memory at its turn."""
SMALLEST_MAPPED_BYTES = 1 << 20


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
    """A large weight that is in the file as it shall be, as pages of the file; None where it cannot be that."""
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
