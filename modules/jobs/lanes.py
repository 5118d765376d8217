"""Where work of the queue is done: each `Lane` takes one entry at a time, in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from modules.jobs.job import Entry, Executor

log = logging.getLogger(__name__)


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

    def may_take(self, entry: Entry) -> bool:
        """Whether an entry may run here. One that cannot be looked at may: it runs, and says itself what is wrong."""
        if self.name in entry.standing.avoids:
            return False
        try:
            return self.takes(entry)
        except Exception:
            log.exception("%s: whether %s can run there could not be found out", self.name, entry.task_id)
            return True

    @property
    def is_busy(self) -> bool:
        """Whether something runs here."""
        return self.entry is not None or self.left is not None
