"""The worker's side: takes commands, computes one job at a time, and reports. Knows neither processes nor machines."""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from modules.images.saving import OnPath
from modules.jobs.job import Executor, Job
from modules.jobs.workers.protocol import (
    NO_PIXELS,
    Answer,
    AskMemory,
    ChangeSettings,
    Channel,
    Command,
    EngineReport,
    ImageFinished,
    Interrupt,
    JobDone,
    Load,
    Noted,
    PathChosen,
    Planned,
    PreviewMade,
    Ready,
    RefreshModels,
    Reload,
    Report,
    RunJob,
    SaveImage,
    SaveSource,
    Saving,
    Skip,
    StageBegan,
    Stepped,
    Stop,
    Unload,
    error_of,
    failure_of,
)
from modules.processing.memory_estimate.status import EngineStatus
from modules.processing.pipeline.stages import Part, Stage
from modules.processing.record.output import Output
from modules.processing.record.result import GeneratedImage, Result
from modules.processing.record.spool import Unsaved
from modules.processing.request import GenerationRequest
from modules.processing.start import SourceImage
from modules.settings.values import Settings

log = logging.getLogger(__name__)

STATUS_EVERY_S = 0.2
DEVICE_FAILED = 70
"""The exit code of a worker whose GPU takes no more work."""
DEVICE_ERRORS = ("CUDA error", "HIP error", "CUBLAS_STATUS", "CUDNN_STATUS_EXECUTION_FAILED")


class Host(Protocol):
    """What computes in a worker. Methods are called from several threads."""

    @property
    def executor(self) -> Executor: ...

    @property
    def device(self) -> str: ...

    @property
    def status(self) -> EngineStatus: ...

    def load(self, checkpoint: str | None) -> None: ...

    def unload(self) -> None: ...

    def reload(self) -> None: ...

    def memory(self) -> Any: ...

    def change_settings(self, settings: Settings) -> None: ...

    def refresh(self) -> None: ...


class WorkerLoop:
    """`run()` in the thread that shall compute, until `Stop` comes or nobody is there any more.

    `build` makes the host; it gets how files are saved. `give_up` is called when the server is gone or the device takes
    no more work, with an exit code, in the middle of whatever runs; it ends the process, or marks the actor as lost.
    """

    def __init__(
        self, channel: Channel, build: Callable[[Path, Asking], Host], data_dir: Path, give_up: Callable[[int], object]
    ) -> None:
        self._channel = channel
        self._build = build
        self._data_dir = data_dir
        self._give_up = give_up
        self._numbers = itertools.count()
        self._replies: dict[int, queue.SimpleQueue[PathChosen | Answer]] = {}
        self._jobs: queue.SimpleQueue[RunJob | None] = queue.SimpleQueue()
        self._controls: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._job: Job | None = None
        self._over = threading.Event()

    def run(self) -> None:
        """Serve until the end."""
        threading.Thread(target=self._listen, name="featherweight-commands", daemon=True).start()
        host = self._build(self._data_dir, self.ask)
        self._channel.send(Ready(os.getpid(), host.device))
        threading.Thread(target=self._control, args=(host,), name="featherweight-control", daemon=True).start()
        threading.Thread(target=self._report_status, args=(host,), name="featherweight-status", daemon=True).start()
        try:
            while (command := self._jobs.get()) is not None:
                self._compute(host, command)
        finally:
            self._over.set()
            self._controls.put(None)
            host.executor.close()

    # -- in the thread that listens ------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            try:
                command = self._channel.receive()
            except (EOFError, OSError):
                self._give_up(1)
                return
            match command:
                case RunJob():
                    self._jobs.put(command)
                case Interrupt(task_id, after_batch) if self._job is not None and self._job.task_id == task_id:
                    self._job.interrupt(after_batch)
                case Skip(task_id) if self._job is not None and self._job.task_id == task_id:
                    self._job.skip()
                case PathChosen() | Answer():
                    waiting = self._replies.get(command.number)
                    if waiting is not None:
                        waiting.put(command)
                case Stop():
                    if self._job is not None:
                        self._job.interrupt()
                    self._jobs.put(None)
                    return
                case Interrupt() | Skip():
                    pass  # the job has ended meanwhile
                case _:
                    self._controls.put(command)

    # -- in the thread of model and settings ---------------------------------------------------------------------------

    def _control(self, host: Host) -> None:
        while (command := self._controls.get()) is not None:
            number = getattr(command, "number", None)
            try:
                value = self._controlled(host, command)
            except Exception as error:
                log.warning("%s: %s", type(command).__name__, error)
                if number is not None:
                    self._channel.send(Answer(number, problem=failure_of(error)))
                continue
            if number is not None:
                self._channel.send(Answer(number, value))

    def _controlled(self, host: Host, command: Command) -> Any:
        match command:
            case Load(checkpoint):
                host.load(checkpoint)
            case Unload():
                host.unload()
            case Reload():
                host.reload()
            case AskMemory():
                return host.memory()
            case ChangeSettings(settings):
                host.change_settings(settings)
            case RefreshModels():
                host.refresh()
        return None

    def _report_status(self, host: Host) -> None:
        last: EngineStatus | None = None
        while not self._over.wait(STATUS_EVERY_S):
            status = host.status
            if status != last:
                last = status
                try:
                    self._channel.send(EngineReport(status))
                except OSError:
                    return  # the thread that listens ends the worker

    # -- in the thread that computes -----------------------------------------------------------------------------------

    def _compute(self, host: Host, command: RunJob) -> None:
        job = self._job = ReportedJob(command, self._channel.send)
        try:
            if command.refresh:
                host.refresh()
            report: Report = _done(host.executor.run(job), job.finished)
        except Exception as error:
            if is_device_failure(error):
                log.exception("%s: the device takes no more work", command.task_id)
                self._give_up(DEVICE_FAILED)
                return
            report = failure_of(error)
            if error_of(report).status == 500:
                log.warning("%s (%s) failed", command.task_id, command.title, exc_info=error)
        finally:
            self._job = None
        self._channel.send(report)

    def ask(self, message: Callable[[int], SaveImage | SaveSource], on_path: OnPath | None = None) -> Any:
        """Send a question and wait for its answer; raises the error that it was answered with."""
        number = next(self._numbers)
        replies = self._replies[number] = queue.SimpleQueue()
        try:
            self._channel.send(message(number))
            while isinstance(reply := replies.get(), PathChosen):
                if on_path is not None:
                    on_path(reply.path, reply.fingerprint)
                self._channel.send(Noted(number))
        finally:
            del self._replies[number]
        if reply.problem is not None:
            raise error_of(reply.problem)
        return reply.value


class Asking(Protocol):
    """`WorkerLoop.ask`."""

    def __call__(self, message: Callable[[int], SaveImage | SaveSource], on_path: OnPath | None = None) -> Any: ...


def _no_ask(message: Callable[[int], SaveImage | SaveSource], on_path: OnPath | None = None) -> Any:
    raise AssertionError("an output that asks needs somebody to ask")


@dataclass(frozen=True)
class AskingOutput(Output):
    """Has every file written by the server, which knows where and records it."""

    ask: Asking = field(default=_no_ask)

    def put(self, image: Image.Image, unsaved: Unsaved, on_path: OnPath) -> tuple[Path | None, str | None]:
        path, problem = self.ask(lambda number: SaveImage(number, image, unsaved), on_path)
        return path, problem

    def save_source(self, source: SourceImage, request: GenerationRequest) -> str | None:
        problem: str | None = self.ask(lambda number: SaveSource(number, source, request))
        return problem


class ReportedJob(Job):
    """A job in the worker: what happens to it is reported."""

    def __init__(self, command: RunJob, send: Callable[[Report], None]) -> None:
        super().__init__(
            command.task_id,
            command.request,
            title=command.title,
            preview_every=command.preview_every,
            made=command.made,
        )
        self._send = send
        self.finished: list[Image.Image] = []

    def stage(self, stage: Stage, parts: Sequence[Part] = ()) -> None:
        super().stage(stage, parts)
        self._send(StageBegan(stage, tuple(parts)))

    def plan(self, total_steps: int) -> None:
        super().plan(total_steps)
        self._send(Planned(total_steps))

    def step(self, done: int, info: object = None) -> None:
        super().step(done, info)
        self._send(Stepped(done))

    def preview(self, image: Image.Image) -> None:
        super().preview(image)
        self._send(PreviewMade(image))

    def saving(self, image: GeneratedImage, path: Path, fingerprint: str) -> None:
        self._send(Saving(replace(image, image=NO_PIXELS), path, fingerprint))

    def finished_image(self, image: GeneratedImage) -> None:
        self.finished.append(image.image)
        self._send(ImageFinished(image))
        super().finished_image(image)


def _done(result: Result, finished: Sequence[Image.Image]) -> JobDone:
    numbers = {id(image): number for number, image in enumerate(finished)}
    images = tuple(
        (replace(image, image=NO_PIXELS), numbers[id(image.image)]) if id(image.image) in numbers else (image, None)
        for image in result.images
    )
    return JobDone(replace(result, images=()), images)


def is_device_failure(error: BaseException) -> bool:
    """Whether a GPU has failed in a way that only a new process gets over. Running out of memory is none."""
    seen: BaseException | None = error
    while seen is not None:
        text = str(seen)
        is_memory = "out of memory" in text or type(seen).__name__ == "OutOfMemoryError"
        if isinstance(seen, RuntimeError) and not is_memory and any(word in text for word in DEVICE_ERRORS):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
