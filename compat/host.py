"""The program of this process, as extensions of the reference UI reach it: they import names and are given nothing.

`PROCESS` is the one variable that stands for it. The program sets it before extensions are loaded, in the server and in
each worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from compat.watched import Watched
from modules.errors import InvalidValueError
from modules.jobs.computing import Computing
from modules.jobs.workers.group import ModelHost
from modules.scripts.job import Making
from modules.services import Services


@dataclass
class Process:
    """The program of a process. `services` is None in a worker, and in the server until it is built."""

    computing: Computing | None = None
    services: Services | None = None
    making: Making | None = None  # what makes jobs that are built where no job runs; None: nothing does
    running: list[Watched] = field(default_factory=list)
    """The jobs that are made in this process, the one begun last at the end."""
    reported: set[str] = field(default_factory=set)  # what is said once, though it happens at each step
    localizations: dict[str, str] = field(default_factory=dict)  # that `modules.localization` found, by name


PROCESS = Process()


@dataclass(frozen=True)
class JobView:
    """The job that runs, as `shared.state` shows it."""

    job: str = ""
    step: int = 0
    steps: int = 0
    images_done: int = 0
    images: int = 0
    text: str = ""
    preview: Any = None
    is_interrupted: bool = False
    is_skipped: bool = False


def host_now() -> Computing:
    """Return what computes in this process. Raises `InvalidValueError` where no program was built."""
    if PROCESS.computing is None:
        raise InvalidValueError("No program runs in this process: names of modules.shared stand for nothing yet.")
    return PROCESS.computing


def has_host() -> bool:
    """Whether a program was built in this process."""
    return PROCESS.computing is not None


def services_now() -> Services | None:
    """Return the server of this process; None in a worker."""
    return PROCESS.services


def models_now() -> ModelHost:
    """Return what holds the model that images are made with."""
    return PROCESS.services.models if PROCESS.services is not None else host_now().engine


def running_now() -> Watched | None:
    """Return the events of the job that is made in this process, of several the one begun last."""
    return PROCESS.running[-1] if PROCESS.running else None


def job_view() -> JobView:
    """Return how far the running job is, by the events of this process or by the server's line."""
    run = running_now()
    if run is not None:
        return JobView(
            job="txt2img",
            step=run.step_now,
            steps=run.steps,
            images_done=run.images_done,
            preview=run.preview_now,
            is_interrupted=run.interrupted or run.is_asked_to_stop(),
            is_skipped=run.skipped,
        )
    queue = PROCESS.services.queue if PROCESS.services is not None else None
    job = queue.running_job() if queue is not None else None
    if queue is None or job is None:
        return JobView()
    now = queue.progress(job.task_id)
    images = job.request.batch_count * job.request.batch_size
    facts = (job.type, now.step, now.total_steps, now.images_done, images, now.phase, now.preview)
    return JobView(*facts, is_interrupted=job.is_interrupt_requested)


def interrupt() -> None:
    """Stop the running job at its next step."""
    run, services = running_now(), PROCESS.services
    if run is not None:
        run.interrupted = True
    elif services is not None and services.queue.running_job() is not None:
        services.queue.interrupt()


def skip() -> None:
    """Leave the running batch."""
    run, services = running_now(), PROCESS.services
    if run is not None:
        run.skipped = True
    elif services is not None and services.queue.running_job() is not None:
        services.queue.skip()
