"""Where work of the queue is done: each `Lane` takes one entry at a time, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from modules.jobs.job import Entry, Executor


def _always() -> bool:
    return True


def _anything(entry: Entry) -> bool:
    return True


@dataclass
class Lane:
    """One place, and what it does now. `is_ready` says whether it takes work now, `takes` which; the queue asks both
    often, and under its lock. `around_task` is open while a task runs. `is_endable`: `executor.close()` may be called
    in the middle of a job."""

    executor: Executor
    name: str = "server"
    is_ready: Callable[[], bool] = _always
    takes: Callable[[Entry], bool] = _anything
    around_task: Callable[[], AbstractContextManager[object]] = field(default=nullcontext)
    is_endable: bool = False
    entry: Entry | None = None  # what runs; this and what follows is changed under the queue's lock
    left: Entry | None = None  # a task that images were let in between two steps of
    is_rung: bool = False  # it was woken for something new, and has not looked yet
    loaded: str = ""  # the model of the last job

    @property
    def is_busy(self) -> bool:
        """Whether something runs here."""
        return self.entry is not None or self.left is not None
