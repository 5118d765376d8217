"""The one queue in front of the engine: work outlives tabs, waits its turn, and is recorded before it runs.

Image jobs and tasks stand in the same line, run in the same thread, and are recorded, forgotten and interrupted alike.
"""

import logging
import random
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from modules.errors import BusyError, FeatherweightError, Interrupted, InvalidValueError, UnknownNameError
from modules.jobs.job import IMAGE_KIND, Ending, Entry, Executor, Job, JobStatus, Progress, recorded_images
from modules.jobs.store import SERVER_ENDED, JobRecord, JobStore
from modules.jobs.tasks import Outcome, Task
from modules.processing.record.result import GeneratedImage
from modules.processing.request import GenerationRequest, request_from_json

log = logging.getLogger(__name__)

KEPT_ENTRIES = 64  # finished work that is remembered: its images stay in memory for a page that comes back
MAX_WAITING = 256
RECORD_RETRY_S = 2.0

Starter = Callable[[dict[str, Any]], Entry]
"""Puts work in line again from the request that its record holds."""


class JobQueue:
    """First in, first out, one worker thread. Build it once; `start()` begins to work, `close()` ends.

    `max_waiting` says how many may stand in line, asked at each submit.
    """

    def __init__(
        self, executor: Executor, store: JobStore, max_waiting: Callable[[], int] = lambda: MAX_WAITING
    ) -> None:
        self._executor = executor
        self.store = store
        self._max_waiting = max_waiting
        self._condition = threading.Condition()
        self._waiting: deque[Entry] = deque()
        self._running: Entry | None = None
        self._known: OrderedDict[str, Entry] = OrderedDict()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._starters: dict[str, Starter] = {IMAGE_KIND: self._image_again}

    def start(self) -> None:
        """Start the worker thread; what was submitted earlier begins now."""
        assert self._thread is None, "the queue is started twice"
        self._thread = threading.Thread(target=self._work, name="featherweight-worker", daemon=True)
        self._thread.start()

    # -- into the line -----------------------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, task_id: str | None = None, preview_every: int = 0) -> Job:
        """Fix the seeds, record the image job on disk, and put it in line.

        `task_id` names the job for callers that want to find it again; while a job of this name waits or runs it is
        taken. Raises `InvalidValueError` for such a name, `BusyError` where the line is full or the record is locked,
        `OutputError` where the record cannot be written.
        """
        task_id = task_id or f"task({_new_id()})"
        job = Job(task_id, fix_seeds(request), preview_every=preview_every, on_image=self._record_images)
        self._enter(job)
        return job

    def submit_task(
        self,
        kind: str,
        title: str,
        work: Callable[[Task], Outcome],
        request: Mapping[str, Any] | None = None,
        *,
        makes_images: bool = False,
        product: object | None = None,
    ) -> Task:
        """Put other work in line. `kind` is a word for programs, `title` a few words for people, `request` what a
        starter of this kind (see `repeats`) needs to begin it again; the rest is as in `Task`. Raises as `submit`."""
        task = Task(_new_id(), kind, title, work, request, makes_images, product)
        self._enter(task)
        return task

    def _enter(self, entry: Entry) -> None:
        _check_id(entry.task_id)
        with self._condition:
            self._check_room()
            known = self._known.get(entry.task_id)
            if known is not None and not known.status.is_final:
                raise InvalidValueError(
                    f"A job with the task id {entry.task_id!r} waits or runs; choose another id, or leave it out to "
                    "get one."
                )
            self._known[entry.task_id] = entry
            self._known.move_to_end(entry.task_id)
        try:
            self.store.add(entry)
        except BaseException:
            with self._condition:
                del self._known[entry.task_id]
            raise
        with self._condition:
            self._forget()
            self._waiting.append(entry)
            self._condition.notify_all()

    def _check_room(self) -> None:
        if self._closing:
            raise Interrupted("The server is shutting down and takes no more jobs; start it again.")
        limit = self._max_waiting()
        if len(self._waiting) >= limit:
            raise BusyError(
                f"{len(self._waiting)} jobs wait in line, and {limit} are allowed (setting queue_limit). Wait, or "
                "clear the line with POST /internal/clear-queue."
            )

    # -- questions ---------------------------------------------------------------------------------------------------

    def get(self, task_id: str) -> Job:
        """The image job of this id, as long as it is remembered (waiting, running, or among the last finished)."""
        job = self.find(task_id)
        if job is None:
            raise UnknownNameError(f"No job has the task id {task_id!r}; it may have finished long ago.")
        return job

    def find(self, task_id: str) -> Job | None:
        """Like `get`, None where there is none."""
        with self._condition:
            entry = self._known.get(task_id)
        return entry if isinstance(entry, Job) else None

    def task(self, task_id: str) -> Task:
        """The task of this id, as long as it is remembered; raises `UnknownNameError`."""
        with self._condition:
            entry = self._known.get(task_id)
        if not isinstance(entry, Task):
            raise UnknownNameError(f"No task has the id {task_id!r}; it may have ended long ago.")
        return entry

    def tasks(self, kind: str | None = None) -> tuple[Task, ...]:
        """The tasks that are remembered, the newest first; of one kind, or all."""
        with self._condition:
            entries = tuple(reversed(self._known.values()))
        return tuple(entry for entry in entries if isinstance(entry, Task) and kind in (None, entry.kind))

    def last_done(self) -> Job | None:
        """The image job that ended last with a result, of those that are remembered; None where there is none."""
        with self._condition:
            entries = tuple(reversed(self._known.values()))
        ended = (JobStatus.DONE, JobStatus.INTERRUPTED)
        return next((job for job in entries if isinstance(job, Job) and job.status in ended and job.has_result), None)

    @property
    def running(self) -> Job | None:
        """The image job that computes now."""
        running = self._running
        return running if isinstance(running, Job) else None

    @property
    def running_task(self) -> Task | None:
        """The task that makes images and computes now."""
        running = self._running
        return running if isinstance(running, Task) and running.makes_images else None

    @property
    def pending(self) -> tuple[Entry, ...]:
        """What runs and what waits, in order."""
        with self._condition:
            return ((self._running,) if self._running else ()) + tuple(self._waiting)

    def progress(self, task_id: str) -> Progress:
        """Where an image job stands; `position` counts what comes before it."""
        job = self.get(task_id)
        return job.progress(next((index for index, other in enumerate(self.pending) if other is job), 0))

    # -- out of the line ---------------------------------------------------------------------------------------------

    def interrupt(self, task_id: str | None = None, after_batch: bool = False, why: str = "interrupted") -> None:
        """Stop work within one step, or take it out of the line; without an id, the image job that runs, or the task
        that makes images.

        `after_batch`: see `Job.interrupt`. `why` is a word for people, should it not have started.
        """
        with self._condition:
            entry = self._known.get(task_id) if task_id else self.running or self.running_task
            is_waiting = entry is not None and entry in self._waiting
            if entry is not None and is_waiting:
                self._waiting.remove(entry)
        if entry is None:
            return
        if is_waiting:
            self._withdraw(entry, why)
        else:
            entry.interrupt(after_batch)

    def clear(self) -> int:
        """Take everything that waits out of the line; what runs goes on. Returns how many that were."""
        with self._condition:
            waiting = tuple(self._waiting)
            self._waiting.clear()
        for entry in waiting:
            self._withdraw(entry, "taken out of the line")
        return len(waiting)

    def _withdraw(self, entry: Entry, why: str) -> None:
        text = f"The job was {why} before it started; nothing was made."
        self.store.ended(entry.task_id, JobStatus.INTERRUPTED, text)
        entry.end(JobStatus.INTERRUPTED, Interrupted(text))

    def skip(self) -> None:
        """The running image job leaves its present batch."""
        job = self.running
        if job is not None:
            job.skip()

    def close(self, timeout_s: float = 30.0) -> None:
        """Interrupt what runs, leave what waits recorded on disk as unfinished, and end the worker. May be called
        again."""
        with self._condition:
            if self._closing:
                return
            self._closing = True
            waiting, running = list(self._waiting), self._running
            self._waiting.clear()
            self._condition.notify_all()
        for entry in waiting:
            entry.end(JobStatus.INTERRUPTED, Interrupted("The server was stopped before the job started."))
        if running is not None:
            running.interrupt()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                log.warning("What runs did not stop within %.0f s; it stays recorded as unfinished.", timeout_s)
                return
        self._executor.close()
        self.store.close()

    def remove_image(self, job: Job, image: GeneratedImage) -> None:
        """Forget an image of a final job, in the record too."""
        job.remove_image(image)
        record = self.store.get(job.task_id)
        if record is None or not record.outcome:
            return
        images = job.result().images if job.has_result else job.images
        self.store.going_on(job.task_id, {**record.outcome, "images": recorded_images(images)})

    # -- left over by a crash ----------------------------------------------------------------------------------------

    def repeats(self, kind: str, starter: Starter) -> None:
        """Say how unfinished work of this kind is begun again."""
        self._starters[kind] = starter

    def unfinished(self) -> list[JobRecord]:
        """What an earlier server left unfinished and nobody has repeated or dismissed, oldest first."""
        return self.store.left_over()

    def repeat(self, task_id: str) -> Entry:
        """Put unfinished work in line again, under a new task id. Raises as `submit`, and `UnknownNameError`."""
        record = self._left_over(task_id)
        starter = self._starters.get(record.kind)
        if starter is None:
            raise InvalidValueError(f"Work of the kind {record.kind!r} cannot be repeated; begin it from its tab.")
        entry = starter(record.request)
        self.store.dismiss(task_id)
        return entry

    def dismiss(self, task_id: str) -> None:
        """Unfinished work that nobody wants any more. Raises `UnknownNameError`."""
        self.store.dismiss(self._left_over(task_id).task_id)

    def _left_over(self, task_id: str) -> JobRecord:
        record = self.store.get(task_id)
        if record is None or not record.left_over:
            raise UnknownNameError(f"No unfinished job has the task id {task_id!r}; it was repeated or dismissed.")
        return record

    def _image_again(self, request: dict[str, Any]) -> Entry:
        return self.submit(request_from_json(request))

    # -- the worker --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            entry = self._next()
            if entry is None:
                return
            try:
                self._run(entry)
            except BaseException as error:  # without this thread every later job would wait for ever
                log.exception("%s could not be brought to its end", entry.task_id)
                entry.end(JobStatus.FAILED, _ours(error))
            finally:
                with self._condition:
                    self._running = None

    def _next(self) -> Entry | None:
        """What to do next; None when the queue closes. While nothing waits, changes of the record that could not be
        written are tried again."""
        while True:
            with self._condition:
                if not self._waiting and not self._closing:
                    self._condition.wait(RECORD_RETRY_S if self.store.is_behind else None)
                if self._closing:
                    return None
                if self._waiting:
                    self._running = self._waiting.popleft()
                    return self._running
            self.store.flush()

    def _run(self, entry: Entry) -> None:
        self.store.started(entry.task_id)
        entry.begin()
        began = time.monotonic()
        ending, error = self._computed(entry)
        stopped = self._closing and ending.status is JobStatus.INTERRUPTED
        text = str(error) if error is not None else SERVER_ENDED if stopped else None
        self.store.ended(entry.task_id, ending.status, text, ending.outcome or None, left_over=stopped)
        entry.end(ending.status, error)
        log.info("%s: %s in %.1f s", entry.task_id, ending.status.value, time.monotonic() - began)

    def _computed(self, entry: Entry) -> tuple[Ending, FeatherweightError | None]:
        try:
            return entry.compute(self._executor), None
        except Interrupted as stop:
            return Ending(JobStatus.INTERRUPTED, {}), stop
        except FeatherweightError as error:
            log.warning("%s (%s): %s", entry.task_id, entry.title, error)
            return Ending(JobStatus.FAILED, {}), error
        except BaseException as error:
            log.exception("%s (%s) failed", entry.task_id, entry.title)
            return Ending(JobStatus.FAILED, {}), _ours(error)

    def _record_images(self, job: Job) -> None:
        self.store.going_on(job.task_id, {"images": recorded_images(job.images)})

    def _forget(self) -> None:
        final = [task_id for task_id, entry in self._known.items() if entry.status.is_final]
        for task_id in final[: max(len(final) - KEPT_ENTRIES, 0)]:
            del self._known[task_id]


def fix_seeds(request: GenerationRequest) -> GenerationRequest:
    """The request with drawn seeds instead of -1, so that the record on disk makes the same images again."""
    draw = random.SystemRandom()
    return replace(
        request,
        seed=request.seed if request.seed >= 0 else draw.randrange(2**32),
        subseed=request.subseed if request.subseed >= 0 else draw.randrange(2**32),
    )


def _new_id() -> str:
    return uuid.uuid4().hex[:15]


def _check_id(task_id: str) -> None:
    """A name that a database and a reply can hold."""
    try:
        task_id.encode()
    except UnicodeEncodeError as error:
        raise InvalidValueError(f"The task id {task_id!r} holds half a character; leave it out to get one.") from error
    if "\0" in task_id:
        raise InvalidValueError(f"The task id {task_id!r} holds a null character; leave it out to get one.")


def _ours(error: BaseException) -> FeatherweightError:
    return FeatherweightError(f"The job failed: internal error {type(error).__name__}: {error}. The log says more.")
