"""Work that samples no image (reports, conversions, merges, Extras): its `Task` in the queue.

A piece of work is a function that gets its `Task`, says how far it is, and returns what a client may read as JSON.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from modules.errors import FeatherweightError, Interrupted
from modules.jobs.job import Ending, Entry, Executor, Job, JobStatus
from modules.processing.request.source_images import SourceImage

Outcome = Mapping[str, Any]
"""What a task gives back, ready for JSON."""


class Product(Protocol):
    """Product of a task that is no JSON, such as images."""

    def begin(self, task: Task) -> None:
        """The work begins, perhaps again after its worker was lost: nothing of it is there."""

    def add(self, item: Any) -> None:
        """The work has made this; it can be pickled."""


@dataclass(frozen=True)
class TaskSpec:
    """Work before it is in line. `type` is a word for programs, `title` a few words for people, `request` what the
    record keeps, ready for JSON: enough to begin the work again. `attached`: what the work needs besides and the record
    does not keep; a starter of the type finds it in the request where it is begun in a worker."""

    type: str
    title: str
    work: Callable[[Task], Outcome]
    request: Mapping[str, Any] = field(default_factory=dict)
    makes_images: bool = False  # see `Task`
    product: Product | None = None
    user: str = ""  # whose it is
    attached: Mapping[str, Any] = field(default_factory=dict)
    pauses: bool = False  # to stop it is to save its state, however long that takes


Starter = Callable[[dict[str, Any]], TaskSpec]
"""The work of a type, from the request that its record holds."""


@dataclass(frozen=True)
class TaskState:
    """A moment in a task's life. `fraction` is 0 to 1, times are seconds, `eta_s` is None before it can be said."""

    id: str
    type: str
    title: str
    status: JobStatus
    fraction: float
    phase: str
    elapsed_s: float
    eta_s: float | None
    error: str | None
    outcome: Outcome | None


class Task(Entry):
    """One piece of work. The working thread calls `progress` and `check`; everybody else reads `state`.

    `spec` may be given as a function, called when the work begins: it comes from a record, and raises what is wrong
    with it. `makes_images`: whoever interrupts the images that are being made means this task too, and the routes of
    progress show it. `product` is kept as long as the task is remembered. `noted`: what an earlier try of the same work
    has done, see `note`.
    """

    def __init__(
        self,
        task_id: str,
        type: str,
        title: str,
        request: Mapping[str, Any],
        spec: TaskSpec | Callable[[], TaskSpec],
        created_at: float | None = None,
    ) -> None:
        super().__init__(task_id, type, title, created_at)
        self._request = dict(request)
        self._spec = spec
        self._fraction = 0.0
        self._phase = "waiting"
        self._outcome: Outcome | None = None
        self.noted: Mapping[str, Mapping[str, Any]] = {}
        self.on_note: Callable[[str, str, Mapping[str, Any]], None] = lambda task_id, key, data: None
        self.on_let_in: Callable[[Task, Callable[[Job], bool]], int] = lambda task, admits: 0

    @property
    def makes_images(self) -> bool:
        """See `TaskSpec`."""
        return isinstance(self._spec, TaskSpec) and self._spec.makes_images

    @property
    def product(self) -> Product | None:
        """See `TaskSpec`; None for one that came from a record and has not begun."""
        return self._spec.product if isinstance(self._spec, TaskSpec) else None

    @property
    def spec(self) -> TaskSpec:
        """The work. Raises what is wrong with a record."""
        if not isinstance(self._spec, TaskSpec):
            self._spec = self._spec()
        return self._spec

    def note(self, key: str, data: Mapping[str, Any]) -> None:
        """Put on record what a later try of this work must not do again, before it is done; after a restart it stands
        in `noted`."""
        self.on_note(self.task_id, key, data)

    def let_images_in(self, admits: Callable[[Job], bool]) -> int:
        """See `Line.let_images_in`."""
        return self.on_let_in(self, admits)

    def recorded_request(self, text_of: Callable[[SourceImage], str] = SourceImage.to_text) -> dict[str, Any]:
        return self._request

    def compute(self, executor: Executor) -> Ending:
        self.check()
        if self.spec.product is not None:
            self.spec.product.begin(self)
        try:
            outcome = executor.run_task(self) if isinstance(executor, TaskExecutor) else self.spec.work(self)
        except Interrupted:
            if self._outcome is None:
                raise
            return Ending(JobStatus.INTERRUPTED, dict(self._outcome))
        self.keep(outcome)
        return Ending(JobStatus.DONE, dict(outcome))

    def begin(self) -> None:
        super().begin()
        self._phase = "starting"

    def put_back(self, notice: str) -> None:
        super().put_back(notice)
        with self._lock:
            self._fraction, self._phase, self._outcome = 0.0, "waiting", None

    def end(self, status: JobStatus, error: FeatherweightError | None = None) -> None:
        with self._lock:
            self._phase = status.value
        super().end(status, error)

    def check(self) -> None:
        """Raise `Interrupted` when the user cancelled."""
        if self._interrupt.is_set():
            raise Interrupted("Cancelled by the user; nothing was kept.")

    def keep(self, outcome: Outcome) -> None:
        """Keep what the work has made so far. It is shown while the work goes on, and stays when it is interrupted."""
        with self._lock:
            self._outcome = outcome

    def produce(self, item: Any) -> None:
        """The work has made something that is no JSON, see `Product`."""
        if self.product is not None:
            self.product.add(item)

    def progress(self, done: float, total: float, phase: str = "") -> None:
        """`done` of `total` is finished; `phase` says for people what happens now. Raises `Interrupted` as `check`."""
        self.check()
        self.show(min(max(done / total, 0.0), 1.0) if total > 0 else 0.0, phase)

    def show(self, fraction: float, phase: str) -> None:
        """Show the same, 0 to 1; never raises."""
        with self._lock:
            self._fraction, self._phase = fraction, phase or self._phase

    def result(self) -> Outcome:
        """The outcome of a final task, also of one that was interrupted after it had made something; raises the error
        of one that failed or was cancelled before."""
        if self._error is not None:
            raise self._error
        assert self._outcome is not None, "result() asked of a task that is not final"
        return self._outcome

    @property
    def state(self) -> TaskState:
        """Where the task stands now."""
        with self._lock:
            elapsed = (self._over or time.monotonic()) - self._began if self._began is not None else 0.0
            runs = self._status is JobStatus.RUNNING and self._fraction > 0
            return TaskState(
                id=self.task_id,
                type=self.type,
                title=self.title,
                status=self._status,
                fraction=1.0 if self._status is JobStatus.DONE else self._fraction,
                phase=self._phase,
                elapsed_s=elapsed,
                eta_s=elapsed / self._fraction * (1 - self._fraction) if runs else None,
                error=str(self._error) if self._error else None,
                outcome=self._outcome,
            )


@runtime_checkable
class TaskExecutor(Protocol):
    """An executor that does tasks too; with others they are done in the thread that asks."""

    def run_task(self, task: Task) -> Outcome:
        """Do the work; raises as `Executor.run`."""
