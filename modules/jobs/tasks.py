"""Long work that makes no image (reports, conversions, comparisons): one piece at a time, beside the job queue.

A piece of work is a function that gets its `Task`, says how far it is, and returns what a client may read as JSON.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from modules.errors import FeatherweightError, Interrupted, UnknownNameError
from modules.jobs.job import JobStatus

log = logging.getLogger(__name__)

KEPT_TASKS = 32

Outcome = Mapping[str, Any]
"""What a task gives back, ready for JSON."""


@dataclass(frozen=True)
class TaskState:
    """A moment in a task's life. `fraction` is 0 to 1, times are seconds, `eta_s` is None before it can be said."""

    id: str
    kind: str
    title: str
    status: JobStatus
    fraction: float
    phase: str
    elapsed_s: float
    eta_s: float | None
    error: str | None
    outcome: Outcome | None


@dataclass(eq=False)
class Task:
    """One piece of work. The working thread calls `progress` and `check`; everybody else reads `state`."""

    kind: str
    title: str
    work: Callable[[Task], Outcome]
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:15])
    _status: JobStatus = JobStatus.QUEUED
    _done: float = 0.0
    _phase: str = "waiting"
    _began: float | None = None
    _ended: float | None = None
    _error: FeatherweightError | None = None
    _outcome: Outcome | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _finished: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise `Interrupted` when the user cancelled."""
        if self._cancelled.is_set():
            raise Interrupted("Cancelled by the user; nothing was kept.")

    def progress(self, done: float, total: float, phase: str = "") -> None:
        """`done` of `total` is finished; `phase` says for people what happens now. Raises `Interrupted` as `check`."""
        self.check()
        with self._lock:
            self._done = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
            self._phase = phase or self._phase

    def cancel(self) -> None:
        """Ask the work to stop at its next `check`."""
        self._cancelled.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the task is final; False when the timeout came first."""
        return self._finished.wait(timeout_s)

    def result(self) -> Outcome:
        """The outcome of a final task; raises the error of one that failed or was cancelled."""
        if self._error is not None:
            raise self._error
        assert self._outcome is not None, "result() asked of a task that is not final"
        return self._outcome

    def run(self) -> None:
        """Do the work in the calling thread; what goes wrong is kept for `result` and `state`."""
        with self._lock:
            self._status, self._began, self._phase = JobStatus.RUNNING, time.monotonic(), "starting"
        try:
            self.check()
            self._end(JobStatus.DONE, outcome=self.work(self))
        except Interrupted as stop:
            self._end(JobStatus.INTERRUPTED, error=stop)
        except FeatherweightError as error:
            log.warning("%s: %s", self.title, error)
            self._end(JobStatus.FAILED, error=error)
        except Exception as error:  # the thread that works must go on with the next task
            log.exception("%s failed", self.title)
            text = f"{self.title} failed through a mistake of ours: {type(error).__name__}: {error}. The log says more."
            self._end(JobStatus.FAILED, error=FeatherweightError(text))

    def _end(self, status: JobStatus, outcome: Outcome | None = None, error: FeatherweightError | None = None) -> None:
        with self._lock:
            self._status, self._outcome, self._error = status, outcome, error
            self._ended = time.monotonic()
            self._phase = status.value
        self._finished.set()

    @property
    def state(self) -> TaskState:
        """Where the task stands now."""
        with self._lock:
            now = self._ended or time.monotonic()
            elapsed = now - self._began if self._began is not None else 0.0
            runs = self._status is JobStatus.RUNNING and self._done > 0
            return TaskState(
                id=self.id,
                kind=self.kind,
                title=self.title,
                status=self._status,
                fraction=1.0 if self._status is JobStatus.DONE else self._done,
                phase=self._phase,
                elapsed_s=elapsed,
                eta_s=elapsed / self._done * (1 - self._done) if runs else None,
                error=str(self._error) if self._error else None,
                outcome=self._outcome,
            )


class Tasks:
    """All tasks: those that wait, the one that runs, and the last that ended. Its thread lives while there is work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Task] = deque()
        self._known: OrderedDict[str, Task] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, kind: str, title: str, work: Callable[[Task], Outcome]) -> Task:
        """Put work in line. `kind` is a word for programs, `title` a few words for people."""
        task = Task(kind, title, work)
        with self._lock:
            if self._closed:
                raise Interrupted("The server is shutting down and takes no more work; start it again.")
            self._known[task.id] = task
            self._forget()
            self._waiting.append(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="featherweight-tasks", daemon=True)
                self._thread.start()
        return task

    def get(self, task_id: str) -> Task:
        """The task of this id; raises `UnknownNameError` for one that is not known (any more)."""
        with self._lock:
            task = self._known.get(task_id)
        if task is None:
            raise UnknownNameError(f"No task has the id {task_id!r}; it may have ended long ago.")
        return task

    def known(self, kind: str | None = None) -> tuple[Task, ...]:
        """The tasks that are remembered, the newest first; of one kind, or all."""
        with self._lock:
            return tuple(task for task in reversed(self._known.values()) if kind in (None, task.kind))

    def close(self, timeout_s: float = 30.0) -> None:
        """Cancel everything and wait for the work that runs to notice."""
        with self._lock:
            self._closed = True
            thread = self._thread
            tasks = list(self._known.values())
        for task in tasks:
            task.cancel()
        if thread is not None:
            thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                task = self._waiting.popleft()
            task.run()

    def _forget(self) -> None:
        final = [task for task in self._known.values() if task.state.status.is_final]
        for task in final[: max(len(final) - KEPT_TASKS, 0)]:
            del self._known[task.id]
