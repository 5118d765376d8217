"""The one queue in front of the engine: work outlives tabs and servers, waits its turn, and is recorded before it runs.

Image jobs and tasks stand in the same line, run in the same lanes (one, unless there are workers), and are recorded,
forgotten and interrupted alike.
What a server leaves behind, the next one goes on with: see `JobQueue.restore`.
"""

import binascii
import logging
import random
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from modules.errors import BusyError, FeatherweightError, Interrupted, InvalidValueError, UnknownNameError
from modules.jobs.job import (
    IMAGE_TYPE,
    Ending,
    Entry,
    Executor,
    Job,
    JobStatus,
    Progress,
    WorkerLostError,
    recorded_images,
)
from modules.jobs.lanes import Lane
from modules.jobs.order import Choice, Waiting, choose, in_order, turns_of_newcomer
from modules.jobs.store import ImageRecord, JobRecord, JobStore
from modules.jobs.tasks import Outcome, Product, Starter, Task, TaskSpec
from modules.processing.record.recordings import Recordings
from modules.processing.record.result import GeneratedImage, ImageRole
from modules.processing.request import GenerationRequest, request_from_json

log = logging.getLogger(__name__)

KEPT_ENTRIES = 64  # finished work that is remembered: its images stay in memory for a page that comes back
KEPT_RECORDS = 1000
PRUNED_EVERY = 50  # ended jobs
MAX_WAITING = 256
MAX_SHOWN = 100
MAX_ASKED = 300  # of waiting work, how much a lane of several is asked for at a time: that may mean reading records
MAX_LET_IN = 16  # image jobs between two steps of a task
LOSS_S = 1.0  # how long a lane may take to notice that its worker was ended
REFUSED_S = 20.0  # how long an image waits that had no room beside a task, before memory is looked at again
RECORD_RETRY_S = 2.0
HELD_RETRY_S = 5.0  # how often it is looked whether a model that was missing is back
MAX_RETRIES = 2
STOPPED = "The server was stopped before the job ended; it goes on when the server is started again."

UNREADABLE = (FeatherweightError, ValueError, TypeError, KeyError, AttributeError, IndexError, binascii.Error)
"""What reading a request raises that somebody has edited."""


class WhenDone(StrEnum):
    """What happens once when the line has been worked off."""

    NOTHING = "nothing"
    UNLOAD = "unload"
    EXIT = "exit"
    SLEEP = "sleep"
    COMMAND = "command"


class ImageListener(Protocol):
    """Told of every finished image of every job, also of those that an earlier server finished in its last moment."""

    def finished(self, task_id: str, user: str, image: GeneratedImage) -> None:
        """Called in the worker's thread; must not raise."""


@dataclass(frozen=True)
class QueueOptions:
    """What the settings say of the queue, asked whenever it matters."""

    max_waiting: int = MAX_WAITING
    retries: int = MAX_RETRIES  # after the server ended while a job ran
    groups: bool = True  # jobs of the loaded model first
    kept_records: int = KEPT_RECORDS
    starts_paused: bool = False


@dataclass(frozen=True)
class Models:
    """What the queue has to know of models. `of` gives what a job is grouped by and the checkpoints that it needs;
    `missing` says for people which of these are not there, "" for none."""

    of: Callable[[GenerationRequest], tuple[str, tuple[str, ...]]] = lambda request: ("", ())
    missing: Callable[[Sequence[str]], str] = lambda needs: ""


@dataclass
class Admission:
    """Whether there is room for an image beside a task. One that had none is not looked at again for a while."""

    has_room: Callable[[Job], bool]
    _refused: dict[str, float] = field(default_factory=dict)  # when, by task id

    def __call__(self, job: Job) -> bool:
        now = time.monotonic()
        if now - self._refused.get(job.task_id, -REFUSED_S) < REFUSED_S:
            return False
        if self.has_room(job):
            return True
        self._refused[job.task_id] = now
        return False


class JobQueue:
    """One line, and a thread for each lane. Build it once; `restore()` takes up what an earlier server left, `start()`
    begins to work, `close()` ends."""

    def __init__(
        self,
        executor: Executor | Sequence[Lane],
        store: JobStore,
        options: Callable[[], QueueOptions] = QueueOptions,
        models: Models | None = None,
        recordings: Recordings | None = None,
    ) -> None:
        """`recordings`: what is kept of images that are being made; the queue deletes it with their jobs."""
        self._recordings = recordings
        self._lanes = tuple(executor) if isinstance(executor, Sequence) else (Lane(executor),)
        self.store = store
        self._options = options
        self._models = models or Models()
        self._condition = threading.RLock()
        self._bells = {lane.name: threading.Condition(self._condition) for lane in self._lanes}
        self._waiting: list[Entry] = []
        self._known: OrderedDict[str, Entry] = OrderedDict()
        self._turns: dict[str, int] = {}  # by user
        self._next_position = 1.0
        self._ended = 0
        self._paused = store.remembered("paused") == "1"
        self._when_done = WhenDone.NOTHING
        self._on_done: Callable[[WhenDone], None] = lambda action: None
        self._has_worked = False  # since the line was empty
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._starters: dict[str, Starter] = {}
        self._images: list[ImageListener] = []

    def start(self) -> None:
        """Start the lanes' threads; what was submitted earlier begins now."""
        assert not self._threads, "the queue is started twice"
        for lane in self._lanes:
            name = f"featherweight-lane-{lane.name}"
            self._threads.append(threading.Thread(target=self._work, args=(lane,), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """A lane can take work, or no longer can."""
        with self._condition:
            self._ring()

    def listen(self, listener: ImageListener) -> None:
        """Have every finished image told."""
        self._images.append(listener)

    # -- after a restart ---------------------------------------------------------------------------------------------

    def repeats(self, starters: Mapping[str, Starter]) -> None:
        """Say by type how work is begun again from its record."""
        self._starters.update(starters)

    def restore(self) -> int:
        """Put what an earlier server left unfinished back in line, in its order; returns how much that is.

        What ran when the server was killed is tried again, without the images that it has finished; when that has
        happened too often since its last image, it has failed. Only for the one process that works off the queue.
        """
        options = self._options()
        restored, images = [], self.store.images()
        for record in self.store.waiting():
            try:
                entry = self._restored(record, images.get(record.task_id, []), options)
            except UNREADABLE as error:
                self.store.ended(record.task_id, JobStatus.FAILED, f"The job could not be taken up again: {error}")
                continue
            if entry is not None:
                restored.append(entry)
        with self._condition:
            for entry in restored:
                self._known[entry.task_id] = entry
                self._waiting.append(entry)
            self._next_position = max((item.standing.position for item in self._waiting), default=0.0) + 1.0
            if restored and options.starts_paused:
                self._paused = True
            self._ring()
        self.store.clean_inputs()
        self.store.prune(options.kept_records)
        if self._recordings is not None:
            self._recordings.keep_only([entry.task_id for entry in restored])
        return len(restored)

    def _restored(self, record: JobRecord, images: list[ImageRecord], options: QueueOptions) -> Entry | None:
        """The entry of a record, or None for one that is over."""
        made = self._made(record.task_id, record.standing.user, images)
        has_progress = any(not item.is_done for item in made)
        if record.status is JobStatus.RUNNING and not has_progress and record.standing.attempts > options.retries:
            reason = f"The server ended {record.standing.attempts} times while this job ran; it is not tried again."
            self.store.ended(record.task_id, JobStatus.FAILED, reason)
            return None
        if not record.standing.is_lasting:
            reason = "The server ended before the job did, and its client waits no more."
            self.store.ended(record.task_id, JobStatus.INTERRUPTED, reason)
            return None
        if record.status is JobStatus.RUNNING:
            log.warning("The server ended while %s ran (%s); it is tried again.", record.task_id, record.title)
        entry: Entry
        if record.type == IMAGE_TYPE:
            entry = Job(
                record.task_id,
                self._reading(record),
                title=record.title,
                created_at=record.created_at,
                listener=self,
                made=[item.image for item in made],
            )
        else:
            entry = Task(
                record.task_id,
                record.type,
                record.title,
                record.request,
                self._spec_of(record),
                created_at=record.created_at,
            )
            entry.noted, entry.on_note = self.store.notes(record.task_id), self.store.note
            entry.on_let_in = self.let_images_in
        entry.standing = record.standing
        return entry

    def _made(self, task_id: str, user: str, images: list[ImageRecord]) -> list[ImageRecord]:
        """The images that are there, also those whose file appeared in the last moment, which are told now."""
        made = [item for item in images if item.exists()]
        for item in made:
            if not item.is_done and (found := item.image.read()) is not None:
                self.store.image_done(task_id, found)
                if found.role is ImageRole.SAMPLE:
                    self._tell(task_id, user, found)
        return made

    def _reading(self, record: JobRecord) -> Callable[[], GenerationRequest]:
        def read() -> GenerationRequest:
            try:
                return request_from_json(record.request, self.store.inputs.image_of)
            except FeatherweightError:
                raise
            except UNREADABLE as error:
                raise InvalidValueError(f"The record of the job cannot be read: {error}. Submit it again.") from error

        return read

    def _spec_of(self, record: JobRecord) -> Callable[[], TaskSpec]:
        starter = self._starters.get(record.type)
        if starter is None:
            raise InvalidValueError(f"Work of the type {record.type!r} cannot be repeated; begin it from its tab.")
        return lambda: starter(record.request)

    # -- into the line -----------------------------------------------------------------------------------------------

    def submit(
        self,
        request: GenerationRequest,
        task_id: str | None = None,
        preview_every: int = 0,
        is_lasting: bool = True,
        title: str | None = None,
    ) -> Job:
        """Fix the seeds, record the image job on disk, and put it in line.

        `task_id` names the job for callers that want to find it again; while a job of this name waits or runs it is
        taken. `is_lasting` False: nobody wants the images once the server has been started again. Raises
        `InvalidValueError` for such a name, `BusyError` where the line is full or the record is locked, `OutputError`
        where the record cannot be written.
        """
        task_id = task_id or f"task({_new_id()})"
        request = fix_seeds(request)
        job = Job(task_id, request, preview_every=preview_every, listener=self, title=title)
        job.standing.user, job.standing.is_lasting = request.user, is_lasting
        job.standing.model, job.standing.needs = self._models.of(request)
        self._enter(job)
        return job

    def submit_task(
        self,
        type: str,
        title: str,
        work: Callable[[Task], Outcome],
        request: Mapping[str, Any] | None = None,
        *,
        makes_images: bool = False,
        product: Product | None = None,
        user: str = "",
    ) -> Task:
        """Put other work in line, see `TaskSpec`. Raises as `submit`."""
        return self.submit_spec(TaskSpec(type, title, work, request or {}, makes_images, product, user))

    def submit_spec(self, spec: TaskSpec) -> Task:
        """Put other work in line; a starter of its type (see `repeats`) begins it again after a restart. Raises as
        `submit`."""
        task = Task(_new_id(), spec.type, spec.title, spec.request, spec)
        task.on_note, task.on_let_in = self.store.note, self.let_images_in
        task.standing.user = spec.user
        self._enter(task)
        return task

    def again(self, task_id: str, seed: int | None = None) -> Entry:
        """Put recorded work in line once more under a new task id: with the seeds it had, or with `seed` (-1: a new
        one). Raises as `submit`, and `UnknownNameError`."""
        record = self.record(task_id)
        if record.type != IMAGE_TYPE:
            return self.submit_spec(replace(self._spec_of(record)(), user=record.standing.user))
        request = self._reading(record)()
        if seed is not None:
            request = replace(request, seed=seed, subseed=-1 if request.subseed_strength == 0 else request.subseed)
        return self.submit(request)

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
            entry.standing.position, self._next_position = self._next_position, self._next_position + 1.0
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
            user = entry.standing.user
            if all(item.standing.user != user for item in self._waiting):
                self._turns[user] = turns_of_newcomer(user, [_facts(item) for item in self._waiting], self._turns)
            self._waiting.append(entry)
            self._ring_for(entry)

    def _ring_for(self, entry: Entry) -> None:
        """Wake one lane that can do this. Waking all of many for each job would cost more than the job's record."""
        if self._paused:
            return
        for lane in self._lanes:
            is_free = lane.entry is None and not lane.is_rung and lane.is_ready()
            if is_free and lane.name not in entry.standing.avoids and lane.takes(entry):
                lane.is_rung = True
                self._bells[lane.name].notify()
                return

    def _ring(self) -> None:
        """Wake all lanes: something has changed."""
        for bell in self._bells.values():
            bell.notify_all()

    def _check_room(self) -> None:
        if self._closing:
            raise Interrupted("The server is shutting down and takes no more jobs; start it again.")
        limit = self._options().max_waiting
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

    def tasks(self, type: str | None = None) -> tuple[Task, ...]:
        """The tasks that are remembered, the newest first; of one type, or all."""
        with self._condition:
            entries = tuple(reversed(self._known.values()))
        return tuple(entry for entry in entries if isinstance(entry, Task) and type in (None, entry.type))

    def last_done(self) -> Job | None:
        """The image job that ended last with a result, of those that are remembered; None where there is none."""
        with self._condition:
            entries = tuple(reversed(self._known.values()))
        ended = (JobStatus.DONE, JobStatus.INTERRUPTED)
        return next((job for job in entries if isinstance(job, Job) and job.status in ended and job.has_result), None)

    @property
    def running(self) -> Job | None:
        """The image job that computes now; of several the one that began first."""
        return next((entry for entry in self.running_entries if isinstance(entry, Job)), None)

    @property
    def running_task(self) -> Task | None:
        """The task that makes images and computes now."""
        entries = self.running_entries
        return next((entry for entry in entries if isinstance(entry, Task) and entry.makes_images), None)

    @property
    def pending(self) -> tuple[Entry, ...]:
        """What runs and what waits, in order."""
        with self._condition:
            return (*self.running_entries, *self._waiting)

    @property
    def running_entry(self) -> Entry | None:
        """What runs now, image job or not; of several what began first."""
        return next(iter(self.running_entries), None)

    @property
    def running_entries(self) -> tuple[Entry, ...]:
        """All that runs now, what began first comes first; last the tasks that images were let into."""
        entries = [entry for lane in self._lanes if (entry := lane.entry) is not None]
        left = [entry for lane in self._lanes if (entry := lane.left) is not None]
        return (*sorted(entries, key=lambda entry: entry.started_at or 0.0), *left)

    @property
    def waiting_count(self) -> int:
        """How much waits."""
        return len(self._waiting)

    def find_entry(self, task_id: str) -> Entry | None:
        """Any work of this id that is remembered, None where there is none."""
        with self._condition:
            return self._known.get(task_id)

    def progress(self, task_id: str) -> Progress:
        """Where an image job stands; `position` counts what comes before it."""
        job = self.get(task_id)
        return job.progress(next((index for index, other in enumerate(self.pending) if other is job), 0))

    def line(self, limit: int = MAX_SHOWN) -> tuple[Entry, ...]:
        """The first of what waits, in the order in which it will run as things stand now; what cannot run is last."""
        with self._condition:
            waiting, turns, loaded = list(self._waiting), dict(self._turns), self._lanes[0].loaded
        facts = [_facts(item, bool(item.standing.waits_for)) for item in waiting]
        order = in_order(facts, loaded, turns, limit, self._options().groups)
        if len(order) < limit:
            known = set(order)
            order += [index for index in range(len(waiting)) if index not in known]
        return tuple(waiting[index] for index in order[:limit])

    def record(self, task_id: str) -> JobRecord:
        """The record of any work, waiting, running or ended. Raises `UnknownNameError`."""
        record = self.store.get(task_id)
        if record is None:
            raise UnknownNameError(f"No job has the task id {task_id!r}; its record may have been removed.")
        return record

    @property
    def is_paused(self) -> bool:
        """Whether nothing new is begun."""
        return self._paused

    @property
    def when_done(self) -> WhenDone:
        """What happens when the line has been worked off."""
        return self._when_done

    # -- in the line -------------------------------------------------------------------------------------------------

    def pause(self, is_paused: bool = True) -> None:
        """Begin nothing new, or go on. What runs is finished. Outlives a restart."""
        with self._condition:
            self._paused = is_paused
            self._ring()
        self.store.remember("paused", "1" if is_paused else "0")

    def run_next(self, task_id: str) -> None:
        """Have waiting work run before everything else. Raises `UnknownNameError`."""
        with self._condition:
            entry = self._find_waiting(task_id)
            for other in self._waiting:
                other.standing.is_pinned = other.standing.is_pinned and other is not entry
            entry.standing.is_pinned = True
            self._waiting.remove(entry)
            self._waiting.insert(0, entry)
            changed = self._placed(0)
        self.store.stands(changed)

    def move(self, task_id: str, index: int) -> None:
        """Put waiting work at a place of the line, 0 first; work that was asked to run next no longer is. Raises
        `UnknownNameError`."""
        with self._condition:
            entry = self._find_waiting(task_id)
            self._waiting.remove(entry)
            index = max(0, min(index, len(self._waiting)))
            self._waiting.insert(index, entry)
            entry.standing.is_pinned, entry.standing.overtaken = False, 0
            changed = self._placed(index)
        self.store.stands(changed)

    def move_before(self, task_id: str, other: str | None) -> None:
        """Put waiting work before other waiting work, or last."""
        with self._condition:
            ids = [entry.task_id for entry in self._waiting if entry.task_id != task_id]
        self.move(task_id, ids.index(other) if other in ids else len(ids))

    def _placed(self, index: int) -> list[Entry]:
        """Give the entry at `index` of the line a position between its neighbours'; returns what has changed."""
        line = self._waiting
        entry = line[index]
        before = line[index - 1].standing.position if index > 0 else None
        after = line[index + 1].standing.position if index + 1 < len(line) else None
        if before is None or after is None:
            entry.standing.position = after - 1.0 if after is not None else (before or 0.0) + 1.0
            self._next_position = max(self._next_position, entry.standing.position + 1.0)
            return [entry]
        entry.standing.position = (before + after) / 2
        if before < entry.standing.position < after:
            return [entry]
        for number, item in enumerate(line):  # no room is left between the two
            item.standing.position = float(number + 1)
        self._next_position = float(len(line) + 1)
        return list(line)

    def change(self, task_id: str, changed: Callable[[GenerationRequest], GenerationRequest]) -> Job:
        """Have a waiting image job ask for something else. `changed` gives the new request and raises what is wrong.

        Raises `UnknownNameError` for a job that does not wait, `InvalidValueError` for one that has images already.
        """
        with self._condition:
            entry = self._find_waiting(task_id)
        if not isinstance(entry, Job):
            raise InvalidValueError(f"{entry.title!r} makes no image; cancel it and begin it again from its tab.")
        if entry.made:
            raise InvalidValueError("Images of this job are finished already; duplicate it to have others made.")
        request = fix_seeds(changed(entry.request))
        model, needs = self._models.of(request)
        with self._condition:
            self._find_waiting(task_id)  # it may have begun meanwhile
            before = entry.request
            entry.ask_instead(request)
            entry.standing.model, entry.standing.needs = model, needs
            entry.standing.waits_for = ""
            try:
                self.store.changed(entry)
            except FeatherweightError:
                entry.ask_instead(before)
                raise
            self._ring()
        return entry

    def rename(self, task_id: str, title: str) -> None:
        """Give work other words. Raises `UnknownNameError`."""
        self.record(task_id)
        with self._condition:
            known = self._known.get(task_id)
            if known is not None:
                known.title = title
        self.store.renamed(task_id, title)

    def bookmark(self, task_id: str, is_bookmarked: bool = True) -> None:
        """Mark work: its record is kept when older ones are removed. Raises `UnknownNameError`."""
        self.record(task_id)
        with self._condition:
            known = self._known.get(task_id)
            if known is not None:
                known.standing.is_bookmarked = is_bookmarked
        self.store.bookmarked(task_id, is_bookmarked)

    def set_when_done(self, action: WhenDone) -> None:
        """Choose what happens once when the line has been worked off."""
        with self._condition:
            self._when_done = action
            self._has_worked = bool(self._waiting) or self._is_working

    def on_done(self, act: Callable[[WhenDone], None]) -> None:
        """Who does what was chosen; called in a thread of its own."""
        self._on_done = act

    def _find_waiting(self, task_id: str) -> Entry:
        entry = self._known.get(task_id)
        if entry is None or entry not in self._waiting:
            raise UnknownNameError(f"No waiting job has the task id {task_id!r}; it may have begun or ended.")
        return entry

    # -- out of the line ---------------------------------------------------------------------------------------------

    def interrupt(self, task_id: str | None = None, after_batch: bool = False, why: str = "interrupted") -> None:
        """Stop work within one step, or take it out of the line; without an id, every image job that runs, or the task
        that makes images.

        `after_batch`: see `Job.interrupt`. `why` is a word for people, should it not have started.
        """
        with self._condition:
            if not task_id:
                jobs: list[Entry] = [job for job in self.running_entries if isinstance(job, Job)]
                task = self.running_task
                for running in jobs or ([task] if task is not None else []):
                    running.interrupt(after_batch)
                return
            entry = self._known.get(task_id)
            is_waiting = entry is not None and entry in self._waiting
            if entry is not None and is_waiting:
                self._waiting.remove(entry)
        if entry is None:
            return
        if is_waiting:
            self._withdraw([entry], why)
        else:
            entry.interrupt(after_batch)

    def clear(self) -> int:
        """Take everything that waits out of the line; what runs goes on. Returns how many that were."""
        with self._condition:
            waiting = tuple(self._waiting)
            self._waiting.clear()
        self._withdraw(waiting, "taken out of the line")
        return len(waiting)

    def _withdraw(self, entries: Sequence[Entry], why: str) -> None:
        text = f"The job was {why} before it started; nothing was made."
        self.store.withdrawn([entry.task_id for entry in entries], text)
        for entry in entries:
            self._forget_recordings(entry)
            entry.end(JobStatus.INTERRUPTED, Interrupted(text))

    def _forget_recordings(self, entry: Entry) -> None:
        if self._recordings is not None:
            self._recordings.forget(entry.task_id)

    def skip(self) -> None:
        """Every running image job leaves its present batch."""
        for job in self.running_entries:
            if isinstance(job, Job):
                job.skip()

    def close(self, timeout_s: float = 30.0) -> None:
        """Interrupt what runs, leave both recorded on disk for the next start, and end the worker. May be called
        again."""
        with self._condition:
            if self._closing:
                return
            self._closing = True
            waiting, running = list(self._waiting), self.running_entries
            self._waiting.clear()
            self._ring()
        for entry in waiting:
            entry.end(JobStatus.INTERRUPTED, Interrupted(STOPPED))
        for entry in running:
            entry.interrupt()
        self._join(timeout_s)
        left = [lane for lane in self._lanes if lane.is_busy]
        ended = [lane.executor for lane in self._lanes if lane not in left or lane.is_endable]
        if ended:
            with ThreadPoolExecutor(len(ended)) as together:  # processes take a moment each
                for _ in together.map(lambda executor: executor.close(), ended):
                    pass
        self._join(LOSS_S if any(lane.is_endable for lane in left) else 0.0)
        left = [lane for lane in self._lanes if lane.is_busy]
        if left:
            log.warning("What runs did not stop within %.0f s; it is tried again at the next start.", timeout_s)
        for lane in left:
            for unfinished in (lane.entry, lane.left):
                if unfinished is not None:
                    self.store.put_back(unfinished.task_id)
        if not left:
            self.store.close()

    def _join(self, timeout_s: float) -> None:
        """Wait for the lanes' threads, so long for all of them."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def remove_image(self, job: Job, image: GeneratedImage) -> None:
        """Forget an image of a final job, in the record too."""
        job.remove_image(image)
        record = self.store.get(job.task_id)
        if record is None or not record.outcome:
            return
        images = job.result().images if job.has_result else job.images
        self.store.outcome_changed(job.task_id, {**record.outcome, "images": recorded_images(images)})

    # -- the worker --------------------------------------------------------------------------------------------------

    def _work(self, lane: Lane) -> None:
        while True:
            entry = self._next(lane)
            if entry is None:
                return
            self._run_to_its_end(lane, entry)

    def _run_to_its_end(self, lane: Lane, entry: Entry) -> None:
        try:
            self._run(lane, entry)
        except BaseException as error:  # without this thread every later job would wait for ever
            log.exception("%s could not be brought to its end", entry.task_id)
            entry.end(JobStatus.FAILED, _ours(error))
        finally:
            with self._condition:
                lane.entry = None

    def let_images_in(self, task: Task, admits: Callable[[Job], bool]) -> int:
        """Have the image jobs that wait made now by the lane of `task`, which is between two of its steps; returns how
        many. To be called in the task's own thread.

        `admits` is asked of the first of them whether there is room beside the task; those that it refuses stay in
        line. At most `MAX_LET_IN` are made, so that the task goes on too. Where the queue closes meanwhile, the task is
        interrupted.
        """
        with self._condition:
            lane = next((lane for lane in self._lanes if lane.entry is task), None)
            has_images = any(isinstance(item, Job) for item in self._waiting)
        if lane is None or not has_images:
            return 0
        asked = [entry for entry in self.line(MAX_LET_IN) if isinstance(entry, Job)]
        admitted = {job.task_id for job in asked if admits(job)}
        count = 0
        while (job := self._let_in(lane, task, admitted)) is not None:
            self._run_to_its_end(lane, job)
            count += 1
        with self._condition:
            lane.entry, lane.left = task, None
        if count:
            with lane.around_task():  # makes room for the task again
                pass
        return count

    def _let_in(self, lane: Lane, task: Task, admitted: Collection[str]) -> Entry | None:
        with self._condition:
            if self._closing or self._paused or task.is_interrupt_requested or not lane.is_ready():
                return None
            entry = self._take(lane, admitted)
            if entry is None:
                return None
            assert isinstance(entry, Job)
            entry.is_let_in = True
            lane.entry, lane.left = entry, task
            return entry

    @property
    def _is_working(self) -> bool:
        return any(lane.is_busy for lane in self._lanes)

    def _next(self, lane: Lane) -> Entry | None:
        """What to do next; None when the queue closes. While nothing can be begun, changes of the record that could not
        be written are tried again, and so are jobs whose model was missing."""
        while True:
            with self._condition:
                lane.is_rung = False
                if self._closing:
                    return None
                entry = self._take(lane) if not self._paused and lane.is_ready() else None
                if entry is not None:
                    lane.entry, self._has_worked = entry, True
                    return entry
                action = self._action_when_done()
                if action is WhenDone.NOTHING:
                    held = any(item.standing.waits_for for item in self._waiting)
                    looks = (held and not self._paused) or len(self._lanes) > 1
                    wait_s = HELD_RETRY_S if looks else None
                    self._bells[lane.name].wait(RECORD_RETRY_S if self.store.is_behind else wait_s)
            if action is not WhenDone.NOTHING:
                threading.Thread(target=self._on_done, args=(action,), name="featherweight-when-done").start()
            if self.store.is_behind:
                self.store.flush()

    def _take(self, lane: Lane, admitted: Collection[str] | None = None) -> Entry | None:
        """Take the next entry that this lane can do out of the line; only one of these task ids, where they are
        given."""
        facts = [_facts(item, admitted is not None and item.task_id not in admitted) for item in self._waiting]
        if len(self._lanes) > 1:
            for index, item in enumerate(self._waiting):
                if index >= MAX_ASKED or lane.name in item.standing.avoids or not lane.takes(item):
                    facts[index] = replace(facts[index], is_held=True)
        groups = self._options().groups
        while (choice := choose(facts, lane.loaded, self._turns, groups)) is not None:
            entry = self._waiting[choice.index]
            entry.standing.waits_for = self._models.missing(entry.standing.needs)
            if not entry.standing.waits_for:
                self._count(lane, choice, entry)
                return self._waiting.pop(choice.index)
            facts[choice.index] = replace(facts[choice.index], is_held=True)
        return None

    def _count(self, lane: Lane, choice: Choice, entry: Entry) -> None:
        for index in choice.overtaken:
            self._waiting[index].standing.overtaken += 1
        user = entry.standing.user
        self._turns[user] = self._turns.get(user, 0) + 1
        lane.loaded = entry.standing.model or lane.loaded

    def _action_when_done(self) -> WhenDone:
        """What to do now that nothing can be begun, once."""
        if self._waiting or self._paused or self._is_working or not self._has_worked:
            return WhenDone.NOTHING
        action, self._when_done, self._has_worked = self._when_done, WhenDone.NOTHING, False
        return action

    def _run(self, lane: Lane, entry: Entry) -> None:
        self.store.started(entry.task_id)
        entry.standing.attempts += 1
        entry.begin()
        began = time.monotonic()
        try:
            ending, error = self._computed(lane, entry)
        except WorkerLostError as lost:
            found = self._after_loss(lane, entry, lost)
            if found is None:
                return
            ending, error = found
        if self._closing and ending.status is JobStatus.INTERRUPTED:
            self.store.put_back(entry.task_id)
            error = error or Interrupted(STOPPED) if isinstance(entry, Task) else error
        else:
            text = str(error) if error is not None else None
            self.store.ended(entry.task_id, ending.status, text, ending.outcome or None)
            self._forget_recordings(entry)
        entry.end(ending.status, error)
        self._ended += 1
        if self._ended % PRUNED_EVERY == 0:
            self.store.prune(self._options().kept_records)
        log.info("%s: %s in %.1f s", entry.task_id, ending.status.value, time.monotonic() - began)

    def _after_loss(
        self, lane: Lane, entry: Entry, lost: WorkerLostError
    ) -> tuple[Ending, FeatherweightError | None] | None:
        """Its worker is gone: put it back in line, with the images that it has, and return None; or how it ended."""
        if entry.is_interrupt_requested:  # the user's, or the server's that ends
            return Ending(JobStatus.INTERRUPTED, {}), Interrupted(str(lost))
        if lost.avoid:
            entry.standing.avoids |= {lost.avoid}
            entry.standing.attempts = max(entry.standing.attempts - 1, 0)
            self.store.put_back(entry.task_id)
        elif entry.standing.attempts > self._options().retries:
            tries = entry.standing.attempts
            text = f"{lost} That happened {tries} times while this job ran; it is not tried again."
            return Ending(JobStatus.FAILED, {}), FeatherweightError(text)
        if isinstance(entry, Job):
            records = self.store.images(entry.task_id).get(entry.task_id, [])
            entry.made = {
                item.image.key: item.image for item in self._made(entry.task_id, entry.standing.user, records)
            }
        elif isinstance(entry, Task):
            entry.noted = self.store.notes(entry.task_id)
        entry.put_back(f"{lost} The job was tried again.")
        log.warning("%s (%s): %s It is tried again.", entry.task_id, entry.title, lost)
        with self._condition:
            lane.entry = None
            self._waiting.insert(0, entry)
            self._ring()
        return None

    def _computed(self, lane: Lane, entry: Entry) -> tuple[Ending, FeatherweightError | None]:
        around = lane.around_task if isinstance(entry, Task) else nullcontext
        try:
            with around():
                return entry.compute(lane.executor), None
        except WorkerLostError:
            raise
        except Interrupted as stop:
            return Ending(JobStatus.INTERRUPTED, {}), stop
        except FeatherweightError as error:
            log.warning("%s (%s): %s", entry.task_id, entry.title, error)
            return Ending(JobStatus.FAILED, {}), error
        except BaseException as error:
            log.exception("%s (%s) failed", entry.task_id, entry.title)
            return Ending(JobStatus.FAILED, {}), _ours(error)

    # -- images, see `JobListener` -----------------------------------------------------------------------------------

    def saving(self, job: Job, image: GeneratedImage, path: Path, fingerprint: str) -> None:
        """Record where an image is about to appear: should the process die before it says more, the next one looks."""
        if image.is_finished:
            self.store.saving(job.task_id, image, path, fingerprint)

    def finished(self, job: Job, image: GeneratedImage) -> None:
        """Record an image and tell of it."""
        if not image.is_finished:
            return
        self._tell(job.task_id, job.standing.user, image)  # first: what is not yet done is told again after a kill
        self.store.image_done(job.task_id, image)
        job.standing.attempts = 0

    def _tell(self, task_id: str, user: str, image: GeneratedImage) -> None:
        for listener in self._images:
            listener.finished(task_id, user, image)

    def _forget(self) -> None:
        if len(self._known) - len(self._waiting) <= KEPT_ENTRIES:
            return  # thousands may wait: they are not looked through for each that comes
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


def _facts(entry: Entry, is_held: bool = False) -> Waiting:
    standing = entry.standing
    return Waiting(standing.user, standing.model, standing.overtaken, standing.is_pinned, is_held)


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
