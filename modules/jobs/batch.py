"""A batch: many image jobs put in line one after the other, so that other jobs get their turn between them.

What cannot be made is named, and the rest goes on. A batch lives as long as the server; its jobs are recorded like any.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from modules.access.roles import ANYBODY, Identity
from modules.errors import BusyError, FeatherweightError, Interrupted, InvalidValueError, UnknownNameError
from modules.jobs.job import Job, JobStatus
from modules.processing.request.request import GenerationRequest

log = logging.getLogger(__name__)
KEPT_BATCHES = 16
BUSY_WAIT_S = 1.0

Submit = Callable[[GenerationRequest], Job]


@dataclass(frozen=True)
class BatchItem:
    """One input. `make` gives its request when its turn comes; it raises a `FeatherweightError` for what is broken."""

    name: str
    make: Callable[[], GenerationRequest]


@dataclass(frozen=True)
class BatchState:
    """How far a batch is. `done` counts inputs, the failed ones among them."""

    total: int
    done: int
    current: tuple[str, str] | None  # name and task id of the input that waits or is made
    finished: tuple[str, ...]  # task ids of what was made
    failures: tuple[tuple[str, str], ...]  # name and sentence
    is_over: bool
    is_stopped: bool


class Batch:
    """Begun by `Batches.begin`."""

    def __init__(self, items: Sequence[BatchItem], submit: Submit, user: str = "") -> None:
        self.user = user
        self._items = tuple(items)
        self._submit = submit
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._job: Job | None = None
        self._state = BatchState(len(self._items), 0, None, (), (), False, False)

    @property
    def state(self) -> BatchState:
        with self._lock:
            return self._state

    def stop(self) -> None:
        """Stop the running job at its next step, and begin no other."""
        self._stopping.set()
        with self._lock:
            job = self._job
        if job is not None:
            job.interrupt()

    def run(self) -> None:
        """Make everything in the calling thread."""
        for item in self._items:
            if self._stopping.is_set():
                break
            try:
                self._make(item)
            except FeatherweightError as error:
                self._failed(item, str(error))
            except Exception as error:  # one input must not cost the others
                log.exception("The input %s of a batch could not be made.", item.name)
                self._failed(item, f"internal error {type(error).__name__}: {error}. The log says more.")
        self._change(current=None, is_over=True, is_stopped=self._stopping.is_set())

    def _make(self, item: BatchItem) -> None:
        request = item.make()
        job = self._entered(request)
        if job is None:
            return
        with self._lock:
            self._job = job
        self._change(current=(item.name, job.task_id))
        if self._stopping.is_set():
            job.interrupt()
        job.wait()
        if job.status is JobStatus.INTERRUPTED:
            self._stopping.set()
        if job.has_result:
            self._change(finished=(*self.state.finished, job.task_id), done=self.state.done + 1)
        elif not self._stopping.is_set():
            self._failed(item, str(job.error) if job.error else "it made no image")

    def _entered(self, request: GenerationRequest) -> Job | None:
        """The job in line; waits while the line is full. None where the batch or the server is stopped meanwhile."""
        while not self._stopping.is_set():
            try:
                return self._submit(request)
            except BusyError:
                self._stopping.wait(BUSY_WAIT_S)
            except Interrupted:
                self._stopping.set()
        return None

    def _failed(self, item: BatchItem, sentence: str) -> None:
        state = self.state
        self._change(failures=(*state.failures, (item.name, sentence)), done=state.done + 1)

    def _change(self, **changes: object) -> None:
        with self._lock:
            self._state = replace(self._state, **changes)  # type: ignore[arg-type]


class Batches:
    """The batches of this server, by id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Batch] = OrderedDict()

    def begin(self, batch_id: str, items: Sequence[BatchItem], submit: Submit, user: str = "") -> Batch:
        """Begin a batch in a thread of its own. Raises `InvalidValueError` for an empty one and a known id."""
        if not items:
            raise InvalidValueError("The batch is empty: choose images, or a folder that holds some.")
        batch = Batch(items, submit, user)
        with self._lock:
            if batch_id in self._known:
                raise InvalidValueError(f"A batch has the id {batch_id!r} already; choose another.")
            self._known[batch_id] = batch
            while len(self._known) > KEPT_BATCHES:
                self._known.popitem(last=False)
        threading.Thread(target=batch.run, name="featherweight-batch", daemon=True).start()
        return batch

    def get(self, batch_id: str, identity: Identity = ANYBODY) -> Batch:
        """Raises `UnknownNameError` for a batch that this server does not know, or that is another user's."""
        with self._lock:
            found = self._known.get(batch_id)
        if found is None or not identity.may_change(found.user):
            raise UnknownNameError(
                "This batch is not known: the server was restarted since, or many others came after it. What was made "
                "until then is saved; Generate begins it again."
            )
        return found
