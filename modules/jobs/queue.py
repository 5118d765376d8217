"""The one queue in front of the engine: jobs outlive tabs, wait their turn, and are recorded before they run."""

import logging
import random
import sqlite3
import threading
import time
import uuid
from collections import OrderedDict, deque
from dataclasses import replace
from typing import Protocol

from modules.errors import FeatherweightError, Interrupted, InvalidValueError, UnknownNameError
from modules.jobs.job import Job, JobStatus, Progress
from modules.jobs.store import JobStore
from modules.processing.record.result import Result
from modules.processing.request import GenerationRequest, request_to_json

log = logging.getLogger(__name__)

KEPT_JOBS = 64  # finished jobs whose images stay in memory for a page that comes back


class Executor(Protocol):
    """Runs one job to its end in the calling thread: in this process, in a worker per device, or on a farm."""

    def run(self, job: Job) -> Result:
        """The result; raises a `FeatherweightError` for the user."""

    def close(self) -> None:
        """Free what the executor holds."""


class JobQueue:
    """First in, first out, one worker thread per executor. Build it once; `start()` begins to work, `close()` ends."""

    def __init__(self, executor: Executor, store: JobStore) -> None:
        self._executor = executor
        self.store = store
        self._condition = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the worker thread; jobs submitted earlier begin now."""
        assert self._thread is None, "the queue is started twice"
        self._thread = threading.Thread(target=self._work, name="featherweight-worker", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, task_id: str | None = None, preview_every: int = 0) -> Job:
        """Fix the seeds, record the job on disk, and put it in line.

        `task_id` names the job for callers that want to find it again; a taken one raises `InvalidValueError`.
        """
        with self._condition:
            if self._closing:
                raise Interrupted("The server is shutting down and takes no more jobs; start it again.")
        job = Job(task_id or f"task({uuid.uuid4().hex[:15]})", fix_seeds(request), preview_every=preview_every)
        try:
            self.store.add(job.task_id, "txt2img", request_to_json(job.request), job.created_at)
        except sqlite3.IntegrityError as error:
            raise InvalidValueError(
                f"The task id {job.task_id!r} was used before; choose another, or leave it out to get one."
            ) from error
        with self._condition:
            self._jobs[job.task_id] = job
            self._forget_old_jobs()
            self._waiting.append(job)
            self._condition.notify_all()
        return job

    def get(self, task_id: str) -> Job:
        """The job of this task id, as long as it is remembered (waiting, running, or among the last finished)."""
        with self._condition:
            job = self._jobs.get(task_id)
        if job is None:
            raise UnknownNameError(f"No job has the task id {task_id!r}; it may have finished long ago.")
        return job

    def find(self, task_id: str) -> Job | None:
        """Like `get`, None where there is none."""
        with self._condition:
            return self._jobs.get(task_id)

    def last_done(self) -> Job | None:
        """The job that ended last with a result, of those that are remembered; None where there is none."""
        with self._condition:
            done = [job for job in self._jobs.values() if job.status in (JobStatus.DONE, JobStatus.INTERRUPTED)]
        return next((job for job in reversed(done) if job.has_result), None)

    @property
    def running(self) -> Job | None:
        """The job that computes now."""
        return self._running

    @property
    def pending(self) -> tuple[Job, ...]:
        """The running job and the waiting ones, in order."""
        with self._condition:
            return ((self._running,) if self._running else ()) + tuple(self._waiting)

    def progress(self, task_id: str) -> Progress:
        """Where a job stands; `position` counts the jobs before it."""
        job = self.get(task_id)
        return job.progress(self._position(job))

    def _position(self, job: Job) -> int:
        for index, other in enumerate(self.pending):
            if other is job:
                return index
        return 0

    def interrupt(self, task_id: str | None = None, after_batch: bool = False) -> None:
        """Stop a job within one step, or take it out of the line; without an id, the running one.

        `after_batch`: see `Job.interrupt`.
        """
        with self._condition:
            job = self._jobs.get(task_id) if task_id else self._running
            if job is None:
                return
            if job in self._waiting:
                self._waiting.remove(job)
                self.store.ended(job.task_id, JobStatus.INTERRUPTED, "interrupted before it started")
                job.cancel()
                return
        job.interrupt(after_batch)

    def skip(self) -> None:
        """The running job leaves its present batch."""
        job = self._running
        if job is not None:
            job.skip()

    def close(self, timeout_s: float = 30.0) -> None:
        """Interrupt what runs, leave what waits recorded on disk, and end the worker."""
        with self._condition:
            self._closing = True
            waiting, running = list(self._waiting), self._running
            self._waiting.clear()
            self._condition.notify_all()
        for job in waiting:
            job.cancel()
        if running is not None:
            running.interrupt()
        if self._thread is not None:
            self._thread.join(timeout_s)
        self._executor.close()
        self.store.close()

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._closing:
                    self._condition.wait()
                if self._closing:
                    return
                job = self._waiting.popleft()
                self._running = job
            try:
                self._run(job)
            finally:
                with self._condition:
                    self._running = None

    def _run(self, job: Job) -> None:
        self.store.started(job.task_id)
        job.begin()
        began = time.monotonic()
        try:
            result = self._executor.run(job)
        except FeatherweightError as error:
            self.store.ended(job.task_id, JobStatus.FAILED, str(error))
            job.fail(error)
            log.warning("%s: %s", job.task_id, error)
        except Exception as error:  # a worker thread that dies would leave every later job waiting for ever
            log.exception("%s failed", job.task_id)
            text = f"The job failed through a mistake of ours: {type(error).__name__}: {error}. The log says more."
            self.store.ended(job.task_id, JobStatus.FAILED, text)
            job.fail(FeatherweightError(text))
        else:
            status = JobStatus.INTERRUPTED if result.interrupted else JobStatus.DONE
            self.store.ended(job.task_id, status, outcome=_outcome(result))
            job.finish(result)
            count = len(result.images)
            took = time.monotonic() - began
            log.info("%s: %d %s in %.1f s", job.task_id, count, "image" if count == 1 else "images", took)

    def _forget_old_jobs(self) -> None:
        final = [task_id for task_id, job in self._jobs.items() if job.status.is_final]
        for task_id in final[: max(len(final) - KEPT_JOBS, 0)]:
            del self._jobs[task_id]


def fix_seeds(request: GenerationRequest) -> GenerationRequest:
    """The request with drawn seeds in place of -1, so that the record on disk makes the same images again."""
    draw = random.SystemRandom()
    return replace(
        request,
        seed=request.seed if request.seed >= 0 else draw.randrange(2**32),
        subseed=request.subseed if request.subseed >= 0 else draw.randrange(2**32),
    )


def _outcome(result: Result) -> dict[str, object]:
    return {
        "images": [
            {"path": str(p.path) if p.path else None, "kind": p.kind.value, "seed": p.seed, "infotext": p.infotext}
            for p in result.images
        ],
        "notices": list(result.notices),
        "timings_s": dict(result.timings_s),
        "memory": result.memory.summary() if result.memory is not None else None,
    }
