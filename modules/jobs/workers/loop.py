"""The worker's side: takes commands, computes one job at a time, and reports. Knows neither processes nor machines."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from modules.images.saving import OnPath
from modules.jobs.job import Executor, Job
from modules.jobs.tasks import Outcome, Task, TaskSpec
from modules.jobs.workers import protocol as say
from modules.jobs.workers.protocol import (
    NO_PIXELS,
    Answer,
    Ask,
    Asked,
    Channel,
    Command,
    Happened,
    Happening,
    PathChosen,
    Question,
    Report,
    RunJob,
    RunTask,
    error_of,
    failure_of,
)
from modules.models.files.hashing import HashProgress
from modules.processing.engine.status import EngineStatus
from modules.processing.record.output import Output
from modules.processing.record.spool import Unsaved
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, Result
from modules.processing.request.source_images import SourceImage
from modules.processing.request.stages import Part, Stage
from modules.settings.values import Settings
from modules.system.threads import start_loop

log = logging.getLogger(__name__)

CHANGING = (Question.UNLOAD, Question.RELOAD, Question.MEASURE)

STATUS_EVERY_S = 0.2
REST_S = 5.0
DEVICE_FAILED = 70
"""The exit code of a worker whose GPU takes no more work."""
DEVICE_ERRORS = ("CUDA error", "HIP error", "CUBLAS_STATUS", "CUDNN_STATUS_EXECUTION_FAILED")


class Host(Protocol):
    """Host of what computes in a worker. Methods are called from several threads."""

    @property
    def executor(self) -> Executor: ...

    @property
    def device(self) -> str: ...

    @property
    def status(self) -> EngineStatus: ...

    @property
    def hashing(self) -> HashProgress | None: ...

    def load(self, checkpoint: str | None) -> None: ...

    def answer(self, question: Question, arguments: tuple[Any, ...]) -> Any: ...

    def spec_of(self, type: str, request: Mapping[str, Any]) -> TaskSpec:
        """Work of a type, from its request and what was attached to it."""

    def change_settings(self, settings: Settings) -> None: ...

    def refresh(self) -> None: ...

    def rest(self) -> bool:
        """Called in the thread that computes when nothing has been asked of it for a while. True: not again."""


class WorkerLoop:
    """`run()` in the thread that should compute, until `Stop` comes or nobody is there any more.

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
        self._work: queue.SimpleQueue[RunJob | RunTask | Answer | None] = queue.SimpleQueue()
        self._let_in: int | None = None  # the number of the question, while it waits
        self._controls: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._running: Job | Task | None = None
        self._rested = False
        self._last_status: say.EngineReport | None = None
        self._over = threading.Event()

    def run(self) -> None:
        """Serve until the end."""
        start_loop("featherweight-commands", self._listen)
        host = self._build(self._data_dir, self.ask)
        self._channel.send(say.Ready(os.getpid(), host.device))
        start_loop("featherweight-control", partial(self._control, host))
        start_loop("featherweight-status", partial(self._report_status, host))
        try:
            while (command := self._next(host)) is not None:
                if not isinstance(command, Answer):
                    self._compute(host, command)
        finally:
            self._over.set()
            self._controls.put(None)
            host.executor.close()

    def _next(self, host: Host) -> RunJob | RunTask | Answer | None:
        """The next command; a host that wants it receives that there is none for `REST_S`."""
        while not self._rested:
            try:
                return self._work.get(timeout=REST_S)
            except queue.Empty:
                self._rested = host.rest()
        return self._work.get()

    # -- in the thread that listens ------------------------------------------------------------------------------------

    def _listen(self) -> bool:
        """Pass a command on; False when none comes any more."""
        try:
            command = self._channel.receive()
        except (EOFError, OSError):
            self._give_up(1)
            return False
        except Exception:  # perhaps a job, which waits for ever if this worker goes on without it
            log.exception("a command of the server cannot be read")
            self._give_up(1)
            return False
        running = self._running
        match command:
            case RunJob() | RunTask():
                self._work.put(command)
            case say.Interrupt(task_id, after_batch) if running is not None and running.task_id == task_id:
                running.interrupt(after_batch)
            case say.Skip(task_id) if isinstance(running, Job) and running.task_id == task_id:
                running.skip()
            case Answer() if command.number == self._let_in:
                self._work.put(command)
            case PathChosen() | Answer():
                waiting = self._replies.get(command.number)
                if waiting is not None:
                    waiting.put(command)
            case say.Stop():
                self._work.put(None)
                if running is not None:
                    running.interrupt()
                return False
            case say.Interrupt() | say.Skip():
                pass  # the job has ended meanwhile
            case _:
                self._controls.put(command)
        return True

    # -- in the thread of model and settings ---------------------------------------------------------------------------

    def _control(self, host: Host) -> bool:
        command = self._controls.get()
        try:
            match command:
                case None:
                    return False
                case Ask():  # each in a thread of its own: to unload is to wait for a running image
                    threading.Thread(target=self._answer, args=(host, command), daemon=True).start()
                case say.Load(checkpoint):
                    host.load(checkpoint)
                case say.ChangeSettings(settings):
                    host.change_settings(settings)
                case say.RefreshModels():
                    host.refresh()
        except Exception as error:
            log.warning("%s: %s", type(command).__name__, error)
        return True

    def _answer(self, host: Host, command: Ask) -> None:
        try:
            answer = Answer(command.number, host.answer(command.question, command.arguments))
            if command.question in CHANGING:  # who asked looks at the status next
                self._channel.send(say.EngineReport(host.status, host.hashing))
        except BaseException as error:
            found = failure_of(error)
            if error_of(found).status == 500:
                log.warning("%s failed", command.question, exc_info=error)
            answer = Answer(command.number, problem=found)
        with contextlib.suppress(OSError):  # the thread that listens ends the worker
            self._send(answer, lambda error: Answer(command.number, problem=failure_of(error)))

    def _send(self, report: Report, instead: Callable[[Exception], Report]) -> None:
        """Send a report that somebody waits for, or why it cannot be sent."""
        try:
            self._channel.send(report)
        except OSError:
            raise
        except Exception as error:  # what it holds cannot be pickled
            log.warning("%s cannot be sent", type(report).__name__, exc_info=error)
            self._channel.send(instead(error))

    def _report_status(self, host: Host) -> bool:
        if self._over.wait(STATUS_EVERY_S):
            return False
        report = say.EngineReport(host.status, host.hashing)
        if report != self._last_status:
            self._last_status = report
            try:
                self._channel.send(report)
            except OSError:
                return False  # the thread that listens ends the worker
        return True

    # -- in the thread that computes -----------------------------------------------------------------------------------

    def _compute(self, host: Host, command: RunJob | RunTask) -> None:
        before = self._running  # a task that lets images in
        try:
            if command.refresh:
                host.refresh()
            report = self._job(host, command) if isinstance(command, RunJob) else self._task(host, command)
        except BaseException as error:
            if is_device_failure(error):
                log.exception("%s: the device takes no more work", command.task_id)
                self._give_up(DEVICE_FAILED)
                return
            report = failure_of(error)
            if error_of(report).status == 500:
                log.warning("%s (%s) failed", command.task_id, command.title, exc_info=error)
        finally:
            self._running = before
        self._send(report, failure_of)

    def _job(self, host: Host, command: RunJob) -> Report:
        job = self._running = ReportedJob(command, self._channel.send)
        return _done(host.executor.run(job), job.finished)

    def _task(self, host: Host, command: RunTask) -> Report:
        if command.settings is not None:
            host.change_settings(command.settings)
        task = self._running = ReportedTask(
            command, host.spec_of, self._channel.send, self.ask, partial(self._images_let_in, host)
        )
        return say.TaskDone(dict(task.work()))

    def _images_let_in(self, host: Host) -> int:
        """In the thread that computes, while a task is between two steps: run what is sent until the answer comes."""
        number = self._let_in = next(self._numbers)
        self._channel.send(say.LetIn(number))
        try:
            while not isinstance(command := self._work.get(), Answer):
                if command is None:  # the worker ends
                    self._work.put(None)
                    return 0
                self._compute(host, command)
        finally:
            self._let_in = None
        if command.problem is not None:
            raise error_of(command.problem)
        return int(command.value)

    def ask(self, message: Callable[[int], Asked], on_path: OnPath | None = None) -> Any:
        """Send a question and wait for its answer; raises the error that it was answered with."""
        number = next(self._numbers)
        replies = self._replies[number] = queue.SimpleQueue()
        try:
            self._channel.send(message(number))
            while isinstance(reply := replies.get(), PathChosen):
                if on_path is not None:
                    on_path(reply.path, reply.fingerprint)
                self._channel.send(say.Noted(number))
        finally:
            del self._replies[number]
        if reply.problem is not None:
            raise error_of(reply.problem)
        return reply.value


class Asking(Protocol):
    """`WorkerLoop.ask`."""

    def __call__(self, message: Callable[[int], Asked], on_path: OnPath | None = None) -> Any: ...


def _no_ask(message: Callable[[int], Asked], on_path: OnPath | None = None) -> Any:
    raise AssertionError("an output that asks needs somebody to ask")


@dataclass(frozen=True)
class AskingOutput(Output):
    """Has every file written by the server, which knows where and records it."""

    ask: Asking = field(default=_no_ask)

    def put(self, image: Image.Image, unsaved: Unsaved, on_path: OnPath) -> tuple[Path | None, str | None]:
        path, problem = self.ask(lambda number: say.SaveImage(number, image, unsaved), on_path)
        return path, problem

    def save_source(self, source: SourceImage, request: GenerationRequest) -> str | None:
        problem: str | None = self.ask(lambda number: say.SaveSource(number, source, request))
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
        self.is_let_in = command.is_let_in
        self._send = send
        self.finished: list[Image.Image] = []

    def _tell(self, what: Happening, *arguments: Any) -> None:
        self._send(Happened(what, arguments))

    def stage(self, stage: Stage, parts: Sequence[Part] = ()) -> None:
        super().stage(stage, parts)
        self._tell(Happening.STAGE, stage, tuple(parts))

    def plan(self, total_steps: int) -> None:
        super().plan(total_steps)
        self._tell(Happening.PLAN, total_steps)

    def step(self, done: int, info: object = None) -> None:
        super().step(done, info)
        self._tell(Happening.STEP, done)

    def preview(self, image: Image.Image) -> None:
        super().preview(image)
        self._tell(Happening.PREVIEW, image)

    def saving(self, image: GeneratedImage, path: Path, fingerprint: str) -> None:
        self._tell(Happening.SAVING, replace(image, image=NO_PIXELS), path, fingerprint)

    def finished_image(self, image: GeneratedImage) -> None:
        self.finished.append(image.image)
        self._tell(Happening.FINISHED_IMAGE, image)
        super().finished_image(image)


class ReportedTask(Task):
    """A task in the worker: what happens to it is reported. `spec_of`: see `Host`."""

    def __init__(
        self,
        command: RunTask,
        spec_of: Callable[[str, Mapping[str, Any]], TaskSpec],
        send: Callable[[Report], None],
        ask: Asking,
        let_in: Callable[[], int],
    ) -> None:
        super().__init__(
            command.task_id,
            command.type,
            command.title,
            command.request,
            lambda: spec_of(command.type, command.request),
            command.created_at,
        )
        self.noted = command.noted
        self._send = send
        self._ask = ask
        self._let_in = let_in

    def work(self) -> Outcome:
        """Do it in the calling thread."""
        self.check()
        if self.spec.product is not None:
            self.spec.product.begin(self)
        return self.spec.work(self)

    def let_images_in(self, admits: Callable[[Job], bool]) -> int:
        return self._let_in()  # the server asks for itself whether there is room

    def note(self, key: str, data: Mapping[str, Any]) -> None:
        self._ask(lambda number: say.PutOnRecord(number, key, data))

    def keep(self, outcome: Outcome) -> None:
        super().keep(outcome)
        self._send(Happened(Happening.KEEP, (dict(outcome),)))

    def produce(self, item: Any) -> None:
        super().produce(item)
        self._send(Happened(Happening.PRODUCE, (item,)))

    def show(self, fraction: float, phase: str) -> None:
        super().show(fraction, phase)
        self._send(Happened(Happening.SHOW, (fraction, phase)))


def _done(result: Result, finished: Sequence[Image.Image]) -> say.JobDone:
    numbers = {id(image): number for number, image in enumerate(finished)}
    images = tuple(
        (replace(image, image=NO_PIXELS), numbers[id(image.image)]) if id(image.image) in numbers else (image, None)
        for image in result.images
    )
    return say.JobDone(replace(result, images=()), images)


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
