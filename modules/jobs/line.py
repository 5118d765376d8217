"""The one line that all work stands in: image jobs and tasks, recorded before they run, in the order of their turn.

It holds no thread. A `Dispatcher` takes work out and gives it back by its `turns`; `Restart` puts in what an earlier
server left.
Whoever asks or changes something says who they are: what is somebody else's is unknown to them. Without that they are
`ANYBODY`, who may do everything.
"""

import random
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from modules.access.roles import ANYBODY, Identity
from modules.errors import BusyError, FeatherweightError, Interrupted, InvalidValueError, UnknownNameError
from modules.jobs.images import JobImages
from modules.jobs.job import IMAGE_TYPE, Entry, Job, JobStatus, Progress
from modules.jobs.known import Known
from modules.jobs.repeats import Repeats
from modules.jobs.store import JobRecord, JobStore
from modules.jobs.tasks import Task, TaskSpec
from modules.jobs.turns import Turns
from modules.jobs.waiting import WaitingEntries
from modules.processing.record.recordings import Recordings
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings
from modules.system.file_names import without_controls
from modules.system.texts import page_text

KEPT_RECORDS = 1000
MAX_WAITING = 256
MAX_SHOWN = 100
MAX_RETRIES = 2


@dataclass(frozen=True)
class QueueOptions:
    """Settings of the queue, asked whenever it matters."""

    max_waiting: int = MAX_WAITING
    retries: int = MAX_RETRIES  # after the server ended while a job ran
    groups: bool = True  # jobs of the loaded model first
    kept_records: int = KEPT_RECORDS
    starts_paused: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Read them."""
        system = settings.system
        return cls(
            system.queue_limit,
            system.queue_retries,
            system.queue_groups_models,
            system.queue_kept_jobs,
            system.queue_starts_paused,
        )


@dataclass(frozen=True)
class Models:
    """Knowledge of the queue about models. `of` gives what a job is grouped by and the checkpoints that it needs;
    `missing` says for people which of these are not there, "" for none."""

    of: Callable[[GenerationRequest], tuple[str, tuple[str, ...]]] = lambda request: ("", ())
    missing: Callable[[Sequence[str]], str] = lambda needs: ""


class Line:
    """Line of what waits and what runs. All methods may be called from any thread."""

    def __init__(
        self,
        store: JobStore,
        options: Callable[[], QueueOptions] = QueueOptions,
        models: Models | None = None,
        recordings: Recordings | None = None,
    ) -> None:
        """`recordings`: what is kept of images that are being made; it is deleted with their jobs."""
        self.store = store
        self.options = options
        self.lock = threading.RLock()
        self.known = Known(self.lock)
        self.images = JobImages(store, self.known, recordings)
        self.repeats = Repeats(store)
        self._models = models or Models()
        self._waiting = WaitingEntries()
        self.turns = Turns(self.lock, self._waiting, self.known, lambda: options().groups, self._models.missing)
        self.turns.is_paused = store.remembered("paused") == "1"

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
        job = Job(task_id, request, preview_every=preview_every, listener=self.images, title=title)
        job.standing.user, job.standing.is_lasting = request.user, is_lasting
        job.standing.model, job.standing.needs = self._models.of(request)
        self._enter(job)
        return job

    def submit_spec(self, spec: TaskSpec) -> Task:
        """Put other work in line; a starter of its type (see `Repeats`) begins it again after a restart. Raises as
        `submit`."""
        task = Task(_new_id(), spec.type, spec.title, spec.request, spec)
        task.standing.user = spec.user
        self._enter(task)
        return task

    def again(self, task_id: str, seed: int | None = None, who: Identity = ANYBODY) -> Entry:
        """Put recorded work in line once more under a new task id: with the seeds it had, or with `seed` (-1: a new
        one). Raises as `submit`, and `UnknownNameError`."""
        record = self.record(task_id, who)
        if record.type != IMAGE_TYPE:
            return self.submit_spec(replace(self.repeats.spec_of(record)(), user=record.standing.user))
        request = self.repeats.request_of(record)
        if seed is not None:
            request = replace(request, seed=seed, subseed=-1 if request.subseed_strength == 0 else request.subseed)
        return self.submit(request)

    def _enter(self, entry: Entry) -> None:
        _check_id(entry.task_id)
        with self.lock:
            self._check_room()
            self.known.add(entry)
            entry.standing.position = self._waiting.new_position()
        try:
            self.store.add(entry)
        except BaseException:
            self.known.remove(entry)
            raise
        with self.lock:
            self._waiting.append(entry)
            self.turns.changed(entry)

    def _check_room(self) -> None:
        if self.turns.is_closed:
            raise Interrupted("The server is shutting down and takes no more jobs; start it again.")
        limit = self.options().max_waiting
        if len(self._waiting) >= limit:
            raise BusyError(
                f"{len(self._waiting)} jobs wait in line, and {limit} are allowed (setting queue_limit). Wait, or "
                "clear the line with POST /internal/clear-queue."
            )

    # -- questions ---------------------------------------------------------------------------------------------------

    def running(self, who: Identity = ANYBODY) -> tuple[Entry, ...]:
        """All that runs now, what began first comes first; last the tasks that images were let into."""
        with self.lock:
            running = sorted(self.turns.running, key=lambda entry: (entry.standing.is_left, entry.started_at or 0.0))
        return tuple(entry for entry in running if not entry.status.is_final and who.may_change(entry.standing.user))

    def running_job(self, who: Identity = ANYBODY) -> Job | None:
        """The image job that computes now; of several the one that began first."""
        return next((entry for entry in self.running(who) if isinstance(entry, Job)), None)

    def running_task(self, who: Identity = ANYBODY) -> Task | None:
        """The task that makes images and computes now."""
        return next((entry for entry in self.running(who) if isinstance(entry, Task) and entry.makes_images), None)

    def pending(self, who: Identity = ANYBODY) -> tuple[Entry, ...]:
        """List what runs and what waits, in order."""
        with self.lock:
            running, waiting = self.running(who), tuple(self._waiting)
        if who.is_admin:
            return (*running, *waiting)
        return (*running, *(entry for entry in waiting if who.may_change(entry.standing.user)))

    def first(self, limit: int = MAX_SHOWN, who: Identity = ANYBODY) -> tuple[Entry, ...]:
        """The first of what waits, in the order in which it will run as things stand now; what cannot run is last."""
        loaded, groups = self.turns.loaded, self.options().groups
        with self.lock:
            if who.is_admin:
                return self._waiting.in_order(limit, loaded, groups)
            whole = self._waiting.in_order(len(self._waiting), loaded, groups)
        return tuple(entry for entry in whole if who.may_change(entry.standing.user))[:limit]

    def waiting_count(self, who: Identity = ANYBODY) -> int:
        """How much waits."""
        with self.lock:
            if who.is_admin:
                return len(self._waiting)
            return sum(who.may_change(entry.standing.user) for entry in self._waiting)

    def progress(self, task_id: str, who: Identity = ANYBODY) -> Progress:
        """Where an image job stands; `position` counts what comes before it, whoever's it is. Raises
        `UnknownNameError`."""
        job = self.known.get(task_id, who)
        with self.lock:
            before = len(self.turns.running) + self._waiting.index(job) if job in self._waiting else 0
        return job.progress(before)

    def record(self, task_id: str, who: Identity = ANYBODY) -> JobRecord:
        """The record of any work, waiting, running or ended. Raises `UnknownNameError`."""
        record = self.store.get(task_id)
        if record is None or not who.may_change(record.standing.user):
            raise UnknownNameError(f"No job has the task id {task_id!r}; its record may have been removed.")
        return record

    @property
    def is_paused(self) -> bool:
        """Whether nothing new is begun."""
        return self.turns.is_paused

    @property
    def has_held(self) -> bool:
        """Whether something waits for a model that is not there."""
        with self.lock:
            return self._waiting.has_held

    # -- in the line -------------------------------------------------------------------------------------------------

    def pause(self, is_paused: bool = True) -> None:
        """Begin nothing new, or go on. What runs is finished. Outlives a restart."""
        with self.lock:
            self.turns.is_paused = is_paused
            self.turns.changed(None)
        self.store.remember("paused", "1" if is_paused else "0")

    def run_next(self, task_id: str, who: Identity = ANYBODY) -> None:
        """Have waiting work run before everything else. Raises `UnknownNameError`."""
        with self.lock:
            changed = self._waiting.pin(self._find_waiting(task_id, who))
        self.store.stands(changed)

    def move(self, task_id: str, index: int, who: Identity = ANYBODY) -> None:
        """Put waiting work at a place of the line, 0 first; work that was asked to run next no longer is. Raises
        `UnknownNameError`."""
        with self.lock:
            changed = self._waiting.move(self._find_waiting(task_id, who), index)
        self.store.stands(changed)

    def move_before(self, task_id: str, other: str | None, who: Identity = ANYBODY) -> None:
        """Put waiting work before other waiting work, or last. Raises `UnknownNameError`."""
        if other is not None and not who.is_admin:
            self.record(other, who)
        with self.lock:
            ids = [entry.task_id for entry in self._waiting if entry.task_id != task_id]
            self.move(task_id, ids.index(other) if other in ids else len(ids), who)

    def change(
        self, task_id: str, changed: Callable[[GenerationRequest], GenerationRequest], who: Identity = ANYBODY
    ) -> Job:
        """Have a waiting image job ask for something else. `changed` gives the new request and raises what is wrong.

        Raises `UnknownNameError` for a job that does not wait, `InvalidValueError` for one that has images already.
        """
        with self.lock:
            entry = self._find_waiting(task_id, who)
        if not isinstance(entry, Job):
            raise InvalidValueError(f"{entry.title!r} makes no image; cancel it and begin it again from its tab.")
        if entry.made:
            raise InvalidValueError("Images of this job are finished already; duplicate it to have others made.")
        request = fix_seeds(changed(entry.request))
        model, needs = self._models.of(request)
        with self.lock:
            self._find_waiting(task_id, who)  # it may have begun meanwhile
            before = entry.request
            entry.request = request
            entry.standing.model, entry.standing.needs = model, needs
            entry.standing.waits_for = ""
            try:
                self.store.changed(entry)
            except FeatherweightError:
                entry.request = before
                raise
            self.turns.changed(None)
        return entry

    def rename(self, task_id: str, title: str, who: Identity = ANYBODY) -> None:
        """Give work other words. Raises `UnknownNameError`."""
        self.record(task_id, who)
        title = without_controls(title)
        known = self.known.find_entry(task_id)
        if known is not None:
            known.title = title
        self.store.renamed(task_id, title)

    def bookmark(self, task_id: str, is_bookmarked: bool = True, who: Identity = ANYBODY) -> None:
        """Mark work: its record is kept when older ones are removed. Raises `UnknownNameError`."""
        self.record(task_id, who)
        known = self.known.find_entry(task_id)
        if known is not None:
            known.standing.is_bookmarked = is_bookmarked
        self.store.bookmarked(task_id, is_bookmarked)

    def _find_waiting(self, task_id: str, who: Identity) -> Entry:
        entry = self.known.find_entry(task_id, who)
        if entry is None or entry not in self._waiting:
            raise UnknownNameError(f"No waiting job has the task id {task_id!r}; it may have begun or ended.")
        return entry

    # -- out of the line ---------------------------------------------------------------------------------------------

    def interrupt(
        self,
        task_id: str | None = None,
        after_batch: bool = False,
        why: str = "interrupted",
        who: Identity = ANYBODY,
    ) -> None:
        """Stop work within one step, or take it out of the line; without an id, every image job that runs, or the task
        that makes images. Nothing where there is none.

        `after_batch`: see `Job.interrupt`. `why` is a word for people, should it not have started.
        """
        with self.lock:
            if not task_id:
                jobs: list[Entry] = [job for job in self.running(who) if isinstance(job, Job)]
                task = self.running_task(who)
                for running in jobs or ([task] if task is not None else []):
                    running.interrupt(after_batch)
                return
            entry = self.known.find_entry(task_id, who)
            if entry is None:
                return
            is_waiting = entry in self._waiting
            if is_waiting:
                self._waiting.remove(entry)
        if is_waiting:
            self._withdraw([entry], why)
        else:
            entry.interrupt(after_batch)

    def clear(self, who: Identity = ANYBODY) -> int:
        """Take everything that waits out of the line; what runs goes on. Returns how many that were."""
        with self.lock:
            removed = self._waiting.clear(lambda entry: who.may_change(entry.standing.user))
        self._withdraw(removed, page_text("taken out of the queue"))
        return len(removed)

    def skip(self, who: Identity = ANYBODY) -> None:
        """Every running image job leaves its present batch."""
        for job in self.running(who):
            if isinstance(job, Job):
                job.skip()

    def _withdraw(self, entries: Sequence[Entry], why: str) -> None:
        text = page_text(f"The job was {why} before it started; nothing was made.")
        self.store.withdrawn([entry.task_id for entry in entries], text)
        for entry in entries:
            self.images.forget(entry.task_id)
            entry.end(JobStatus.INTERRUPTED, Interrupted(text))
        self.known.forget()


def fix_seeds(request: GenerationRequest) -> GenerationRequest:
    """The request with drawn seeds instead of -1, so that the record on disk makes the same images again; it also says
    which were drawn."""
    draw = random.SystemRandom()
    if request.seed < 0:
        seed = draw.randrange(2**32)
        request = replace(request, seed=seed, drawn_seed=seed)
    if request.subseed < 0:
        subseed = draw.randrange(2**32)
        request = replace(request, subseed=subseed, drawn_subseed=subseed)
    return request


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
