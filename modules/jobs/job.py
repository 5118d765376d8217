"""One job: what was asked, where it stands, and what came of it. Safe to read from any thread."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from PIL import Image

from modules.errors import FeatherweightError, Interrupted, Skipped
from modules.processing.pipeline.stages import Part, Stage, stage_text
from modules.processing.record.result import GeneratedImage, Result
from modules.processing.request import GenerationRequest


class JobStatus(StrEnum):
    """The states of a job; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def is_final(self) -> bool:
        """Nothing more will happen to such a job."""
        return self in (JobStatus.DONE, JobStatus.FAILED, JobStatus.INTERRUPTED)


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


class Job:
    """Implements `processing.events.Events` for the worker and answers questions for everybody else."""

    def __init__(
        self, task_id: str, request: GenerationRequest, *, preview_every: int = 0, created_at: float | None = None
    ) -> None:
        self.task_id = task_id
        self.request = request
        self.created_at = time.time() if created_at is None else created_at
        self._preview_every = preview_every
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._status = JobStatus.QUEUED
        self._phase = "waiting"
        self._stage: Stage | None = None
        self._total_steps = 0
        self._done_steps = 0
        self._started_at: float | None = None
        self._ended_at: float | None = None
        self._first_step_at: float | None = None
        self._preview: Image.Image | None = None
        self._preview_id = 0
        self._preview_step = 0
        self._images: list[GeneratedImage] = []
        self._interrupt = threading.Event()
        self._skip = threading.Event()
        self._stops_after_batch = False
        self._result: Result | None = None
        self._error: FeatherweightError | None = None

    # -- the worker's side -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The worker took the job."""
        with self._lock:
            self._status = JobStatus.RUNNING
            self._started_at = time.time()
            self._phase = "starting"

    def finish(self, result: Result) -> None:
        """The job is done, or was interrupted with what it had."""
        self._end(JobStatus.INTERRUPTED if result.interrupted else JobStatus.DONE, result=result)

    def fail(self, error: FeatherweightError) -> None:
        """The job ended with an error for the user."""
        self._end(JobStatus.FAILED, error=error)

    def cancel(self) -> None:
        """The job is taken out of the queue before it ran."""
        self._end(
            JobStatus.INTERRUPTED, error=Interrupted("The job was interrupted before it started; nothing was made.")
        )

    def _end(self, status: JobStatus, result: Result | None = None, error: FeatherweightError | None = None) -> None:
        with self._lock:
            self._status = status
            self._result = result
            self._error = error
            self._ended_at = time.time()
            self._preview = self._stage = None
        self._finished.set()

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
            self._total_steps = total_steps

    def step(self, done: int, info: object = None) -> None:
        with self._lock:
            if self._first_step_at is None:
                self._first_step_at = time.time()
            self._done_steps = done

    def wants_preview(self, done: int) -> bool:
        return self._preview_every > 0 and done > 0 and done - self._preview_step >= self._preview_every

    def preview(self, image: Image.Image) -> None:
        with self._lock:
            self._preview = image
            self._preview_id += 1
            self._preview_step = self._done_steps

    def finished_image(self, image: GeneratedImage) -> None:
        with self._lock:
            self._images.append(image)
            self._preview = image.image
            self._preview_id += 1
            if self._stops_after_batch and len(self._images) % self.request.batch_size == 0:
                self._interrupt.set()

    # -- everybody's side --------------------------------------------------------------------------------------------

    def interrupt(self, after_batch: bool = False) -> None:
        """Ask the job to stop within one step; what is finished is kept.

        With `after_batch` it first finishes the batch it is in, if more are to come; asked again it stops at once.
        """
        if after_batch and self._has_more_batches and not self._stops_after_batch:
            self._stops_after_batch = True
        else:
            self._interrupt.set()

    def skip(self) -> None:
        """Ask the job to leave the batch it is in and go on with the next."""
        self._skip.set()

    @property
    def status(self) -> JobStatus:
        return self._status

    @property
    def is_interrupt_requested(self) -> bool:
        return self._interrupt.is_set()

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

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the job is final; False when the timeout came first."""
        return self._finished.wait(timeout_s)

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

    def progress(self, position: int = 0) -> Progress:
        """Where the job stands now. `eta_s` follows from the steps so far; None before the first one."""
        with self._lock:
            now = self._ended_at or time.time()
            total, done = self._total_steps, self._done_steps
            fraction = 1.0 if self._status.is_final else (done / total if total else 0.0)
            eta = None
            if self._first_step_at is not None and not self._status.is_final and done > 1:
                eta = (now - self._first_step_at) / (done - 1) * max(total - done, 0)
            return Progress(
                task_id=self.task_id,
                status=self._status,
                position=position,
                fraction=min(fraction, 1.0),
                step=done,
                total_steps=total,
                eta_s=eta,
                elapsed_s=now - self._started_at if self._started_at else 0.0,
                phase=self._phase,
                stage=self._stage,
                preview=self._preview,
                preview_id=self._preview_id,
                images_done=len(self._images),
                error=str(self._error) if self._error else None,
                created_at=self.created_at,
            )
