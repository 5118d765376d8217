"""Entries of the queue: where it is, whether it should stop, what came of it. Safe to read from any thread.

`Entry` is what all work has in common; a `Job` makes images, a `modules.jobs.tasks.Task` everything else.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol

from PIL import Image

from modules.errors import FeatherweightError, Interrupted, Skipped, UnknownNameError
from modules.processing.record.made import Made, MadeImage
from modules.processing.record.spool import SavedLate
from modules.processing.request.request import GenerationRequest, request_to_json
from modules.processing.request.result import GeneratedImage, Result
from modules.processing.request.source_images import SourceImage
from modules.processing.request.stages import Part, Stage, stage_text
from modules.system.file_names import without_controls

log = logging.getLogger(__name__)

IMAGE_TYPE = "txt2img"
MAX_TITLE_CHARACTERS = 80


class JobStatus(StrEnum):
    """The states of work in the queue; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def is_final(self) -> bool:
        """Nothing more will happen to it."""
        return self in (JobStatus.DONE, JobStatus.FAILED, JobStatus.INTERRUPTED)


@dataclass(frozen=True)
class Ending:
    """How work ended: a final state, and what the record keeps of it, ready for JSON."""

    status: JobStatus
    outcome: dict[str, Any]


@dataclass
class Standing:
    """The place of an entry in the queue and what the order depends on. The queue's own, changed under its lock."""

    position: float = 0.0
    user: str = ""
    model: str = ""  # jobs of one model run together; "": work without one
    needs: tuple[str, ...] = ()  # checkpoints that were there when it was submitted
    waits_for: str = ""  # why it cannot run now, for people
    overtaken: int = 0
    is_pinned: bool = False  # somebody asked for it to run next
    is_bookmarked: bool = False
    attempts: int = 0  # tries since the last image was finished
    is_lasting: bool = True  # whether somebody comes back for it after a restart
    avoids: frozenset[str] = frozenset()  # names of workers that could not do it
    is_held: ClassVar[bool] = False  # see `modules.jobs.order.Facts`; the line says it beside the standings
    is_left: bool = False  # a task that stands between two of its steps, for images that were let in


class WorkerLostError(FeatherweightError):
    """Who computed a job is no longer there: the job is tried again. The message says what happened, as a sentence.

    `avoid` is the name of a worker that this job is not given to again; a try there does not count.
    """

    status = 503

    def __init__(self, message: str, avoid: str = "") -> None:
        super().__init__(message)
        self.avoid = avoid


class Executor(Protocol):
    """Runs one image job to its end in the calling thread: in this process, in a worker per device, or on a farm."""

    def run(self, job: Job) -> Result:
        """The result; raises a `FeatherweightError` for the user, `WorkerLostError` where it is to be tried again."""

    def close(self) -> None:
        """Free what the executor holds."""


class Entry(ABC):
    """One piece of work in the queue. `type` is a word for programs, `title` a few words for people."""

    def __init__(self, task_id: str, type: str, title: str, created_at: float | None = None) -> None:
        self.standing = Standing()
        self.task_id = task_id
        self.type = type
        self.title = without_controls(title)
        self.created_at = time.time() if created_at is None else created_at
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._interrupt = threading.Event()
        self._status = JobStatus.QUEUED
        self._started_at: float | None = None
        self._began: float | None = None  # this and the next by the clock that cannot be set
        self._over: float | None = None
        self._error: FeatherweightError | None = None
        self._when_final: list[Callable[[], None]] = []
        self.on_asked: Callable[[], object] = lambda: None  # told that somebody asks it to stop or skip; must not wait

    @abstractmethod
    def recorded_request(self, text_of: Callable[[SourceImage], str] = SourceImage.to_text) -> dict[str, Any]:
        """Return what was asked, ready for JSON, complete enough to repeat the work. `text_of`: see
        `request_to_json`."""

    @abstractmethod
    def compute(self, executor: Executor) -> Ending:
        """Do the work in the calling thread and keep its result; raises a `FeatherweightError` for the user."""

    def begin(self) -> None:
        """The worker took it."""
        with self._lock:
            self._status, self._started_at, self._began = JobStatus.RUNNING, time.time(), time.monotonic()

    def put_back(self, notice: str) -> None:
        """The worker is gone; it waits again. `notice` says so in its result."""
        with self._lock:
            self._status, self._started_at, self._began = JobStatus.QUEUED, None, None

    def end(self, status: JobStatus, error: FeatherweightError | None = None) -> None:
        """Make it final; whoever waits for it goes on."""
        with self._lock:
            self._status, self._error, self._over = status, error, time.monotonic()
            callbacks, self._when_final = self._when_final, []
        self._finished.set()
        for callback in callbacks:
            try:
                callback()
            except Exception:  # the others wait for it too
                log.exception("%s has ended, and somebody who waited for it failed", self.task_id)

    def interrupt(self, after_batch: bool = False) -> None:
        """Ask the work to stop at its next step."""
        self._interrupt.set()
        self.on_asked()

    @property
    def status(self) -> JobStatus:
        return self._status

    @property
    def started_at(self) -> float | None:
        """When the worker took it, in seconds since the epoch."""
        return self._started_at

    @property
    def error(self) -> FeatherweightError | None:
        """Why it failed or never ran."""
        return self._error

    @property
    def is_interrupt_requested(self) -> bool:
        return self._interrupt.is_set()

    def when_final(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once the work is final, in the worker's thread, or now."""
        with self._lock:
            if not self._status.is_final:
                self._when_final.append(callback)
                return
        callback()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the work is final; False when the timeout came first."""
        return self._finished.wait(timeout_s)


@dataclass(frozen=True)
class Progress:
    """A moment in a job's life. `fraction` is 0 to 1; times are seconds; `position` counts the jobs ahead."""

    task_id: str
    status: JobStatus
    position: int
    fraction: float
    step: int
    total_steps: int
    eta_s: float | None
    elapsed_s: float
    phase: str  # for people
    stage: Stage | None  # None: the job does not run
    preview: Image.Image | None
    preview_id: int
    images_done: int
    error: str | None
    created_at: float


class JobListener(Protocol):
    """Told of a job's images, in the worker's thread."""

    def saving(self, job: Job, image: GeneratedImage, path: Path, fingerprint: str) -> None:
        """See `processing.events.Events.saving`."""

    def finished(self, job: Job, image: GeneratedImage) -> None:
        """An image is complete."""


class Job(Entry):
    """Images. Implements `processing.events.Events` for the worker and answers questions for everybody else.

    `request` may be given as a function, called when it is first needed: thousands of jobs may come back from a record.
    `made` are images that an earlier try of this job has finished.
    """

    def __init__(
        self,
        task_id: str,
        request: GenerationRequest | Callable[[], GenerationRequest],
        *,
        title: str | None = None,
        preview_every: int = 0,
        created_at: float | None = None,
        listener: JobListener | None = None,
        made: Sequence[MadeImage] = (),
    ) -> None:
        if title is None:
            assert isinstance(request, GenerationRequest), "a request that is read later comes with its title"
            title = title_of(request)
        super().__init__(task_id, IMAGE_TYPE, title, created_at)
        self._request = request
        self.made: Made = {image.key: image for image in made}
        self.preview_every = preview_every  # steps; 0: no previews
        self._listener = listener
        self._phase = "waiting"
        self._stage: Stage | None = None
        self.total_steps = 0  # what `plan` said
        self._done_steps = 0
        self._first_step_at: float | None = None
        self._first_step = 0  # which one was reported first: a job that goes on begins in the middle
        self._preview: Image.Image | None = None
        self._preview_id = 0
        self._preview_step = 0
        self._images: list[GeneratedImage] = []
        self._skip = threading.Event()
        self._stops_after_batch = False
        self._result: Result | None = None
        self._moved: list[SavedLate] = []
        self.put_backs: list[str] = []  # a sentence for each worker that was lost while it computed this
        self.is_let_in = False  # a task that is left for it holds memory meanwhile
        self.removed = 0  # how many of its images were deleted since it ended

    # -- the worker's side -------------------------------------------------------------------------------------------

    def recorded_request(self, text_of: Callable[[SourceImage], str] = SourceImage.to_text) -> dict[str, Any]:
        return request_to_json(self.request, text_of)

    @property
    def request(self) -> GenerationRequest:
        """Return what was asked. Raises `FeatherweightError` for a record that cannot be read."""
        if not isinstance(self._request, GenerationRequest):
            self._request = self._request()
        return self._request

    @request.setter
    def request(self, request: GenerationRequest) -> None:
        """Ask for something else; only while it waits and nothing of it is made."""
        self._request, self.title = request, without_controls(title_of(request))

    def compute(self, executor: Executor) -> Ending:
        self.request  # noqa: B018 - a record that cannot be read ends the job here
        earlier = tuple(found for image in self.made.values() if (found := image.read()) is not None)
        with self._lock:
            self._images = list(earlier)
        result = executor.run(self)
        if self.put_backs:
            result = replace(result, notices=(*self.put_backs, *result.notices))
        with self._lock:
            result = replace(result, images=tuple(map(self._where_it_is, result.images)))
            self._result = result
        outcome = {
            "images": recorded_images(result.images),
            "notices": list(result.notices),
            "timings_s": dict(result.timings_s),
            "memory": result.memory.summary() if result.memory is not None else None,
        }
        return Ending(JobStatus.INTERRUPTED if result.interrupted else JobStatus.DONE, outcome)

    def begin(self) -> None:
        super().begin()
        with self._lock:
            self._phase = "starting"

    def put_back(self, notice: str) -> None:
        super().put_back(notice)
        with self._lock:
            self.put_backs.append(notice)
            self._phase, self._stage, self._preview, self._images = "waiting", None, None, []
            self._done_steps = self._preview_step = 0
            self._first_step_at = None

    def end(self, status: JobStatus, error: FeatherweightError | None = None) -> None:
        with self._lock:
            self._preview = self._stage = None
        super().end(status, error)

    def check(self) -> None:
        if self._interrupt.is_set():
            raise Interrupted("Interrupted by the user.")
        if self._skip.is_set():
            self._skip.clear()
            raise Skipped("Skipped by the user.")

    def stage(self, stage: Stage, parts: Sequence[Part] = ()) -> None:
        with self._lock:
            self._stage, self._phase = stage, stage_text(stage, parts)

    def plan(self, total_steps: int) -> None:
        with self._lock:
            self.total_steps = total_steps

    def step(self, done: int, info: object = None) -> None:
        with self._lock:
            if self._first_step_at is None:
                self._first_step_at, self._first_step = time.monotonic(), done
            self._done_steps = done

    def wants_preview(self, done: int) -> bool:
        # Fewer steps than at the last preview: another batch, after one that made more than were planned.
        wants = self.preview_every > 0 and done > 0 and abs(done - self._preview_step) >= self.preview_every
        if wants:
            self._preview_step = done
        return wants

    def preview(self, image: Image.Image) -> None:
        with self._lock:
            self._preview = image
            self._preview_id += 1

    def saving(self, image: GeneratedImage, path: Path, fingerprint: str) -> None:
        if self._listener is not None:
            self._listener.saving(self, image, path, fingerprint)

    def finished_image(self, image: GeneratedImage) -> None:
        with self._lock:
            self._images.append(image)
            self._preview = image.image
            self._preview_id += 1
            if self._stops_after_batch and len(self._images) % self.request.batch_size == 0:
                self._interrupt.set()
        if self._listener is not None:
            self._listener.finished(self, image)

    # -- everybody's side --------------------------------------------------------------------------------------------

    def interrupt(self, after_batch: bool = False) -> None:
        """Ask the job to stop within one step; what is finished is kept.

        With `after_batch` it first finishes the batch it is in, if more are to come; asked again it stops at once.
        """
        if after_batch and self._has_more_batches and not self._stops_after_batch:
            self._stops_after_batch = True
        else:
            self._interrupt.set()
        self.on_asked()

    def skip(self) -> None:
        """Ask the job to leave the batch it is in and go on with the next."""
        self._skip.set()
        self.on_asked()

    @property
    def is_stopping_after_batch(self) -> bool:
        """Whether the job will stop when the batch it is in is finished."""
        return self._stops_after_batch and not self._interrupt.is_set()

    @property
    def _has_more_batches(self) -> bool:
        return self.request.batch_count > 1 or self.request.script is not None

    @property
    def images(self) -> tuple[GeneratedImage, ...]:
        """The images that are finished so far."""
        with self._lock:
            return tuple(self._images)

    def known_images(self) -> tuple[GeneratedImage, ...]:
        """List those of the result, or those that are finished so far. Raises the job's own error if it failed."""
        return self.result().images if self.status.is_final else self.images

    def image(self, index: int) -> GeneratedImage:
        """One of these. Raises `UnknownNameError` for an unknown number."""
        images = self.known_images()
        if not 0 <= index < len(images):
            raise UnknownNameError(f"The job has {len(images)} images; there is no number {index}.")
        return images[index]

    def result(self) -> Result:
        """The result of a final job; raises the job's error if it failed or never ran."""
        if self._error is not None:
            raise self._error
        assert self._result is not None, "result() asked of a job that is not final"
        return self._result

    @property
    def has_result(self) -> bool:
        """Whether the job ended with a result, complete or what it had when it was interrupted."""
        return self._result is not None

    def saved_late(self, saved: SavedLate) -> None:
        """An image of this job that could not be saved is where it belongs."""
        with self._lock:
            self._moved.append(saved)
            self._images = list(map(self._where_it_is, self._images))
            if self._result is not None:
                images = tuple(map(self._where_it_is, self._result.images))
                self._result = replace(self._result, images=images)

    def _where_it_is(self, image: GeneratedImage) -> GeneratedImage:
        for saved in self._moved:
            is_it = image.path == saved.before and (image.path is not None or image.infotext == saved.unsaved.infotext)
            if is_it:
                return replace(image, path=saved.after)
        return image

    def remove_image(self, image: GeneratedImage) -> None:
        """Forget one of the images of a final job."""
        with self._lock:
            self._images = [other for other in self._images if other is not image]
            if self._result is not None:
                kept = tuple(other for other in self._result.images if other is not image)
                self._result = replace(self._result, images=kept)
            self.removed += 1

    def progress(self, position: int = 0) -> Progress:
        """Where the job stands now. `eta_s` follows from the steps so far; None before the first one."""
        with self._lock:
            now = self._over or time.monotonic()
            total, done = self.total_steps, self._done_steps
            fraction = 1.0 if self._status.is_final else (done / total if total else 0.0)
            eta = None
            if self._first_step_at is not None and not self._status.is_final and done > self._first_step:
                eta = (now - self._first_step_at) / (done - self._first_step) * max(total - done, 0)
            return Progress(
                task_id=self.task_id,
                status=self._status,
                position=position,
                fraction=min(fraction, 1.0),
                step=done,
                total_steps=total,
                eta_s=eta,
                elapsed_s=now - self._began if self._began is not None else 0.0,
                phase=self._phase,
                stage=self._stage,
                preview=self._preview,
                preview_id=self._preview_id,
                images_done=len(self._images),
                error=str(self._error) if self._error else None,
                created_at=self.created_at,
            )


def recorded_images(images: tuple[GeneratedImage, ...]) -> list[dict[str, Any]]:
    """Return what the record keeps of images: where they are and how they were made."""
    return [
        {
            "path": str(image.path) if image.path else None,
            "role": image.role.value,
            "seed": image.seed,
            "subseed": image.subseed,
            "infotext": image.infotext,
            "key": image.key,
        }
        for image in images
    ]


def title_of(request: GenerationRequest) -> str:
    """A job in a few words: the beginning of its prompt."""
    return " ".join(request.prompt.split())[:MAX_TITLE_CHARACTERS] or "An image without a prompt"
