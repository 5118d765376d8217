"""The server's side: runs jobs on one worker, follows what it reports, writes its files, and starts it again when it
is gone. How a worker is reached is its `Transport`."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from modules.errors import BusyError, FeatherweightError, Interrupted, Skipped
from modules.jobs.dispatch import Admission
from modules.jobs.job import Job, WorkerLostError
from modules.jobs.tasks import Outcome, Task
from modules.jobs.workers import protocol as say
from modules.jobs.workers.protocol import (
    Answer,
    Ask,
    CarriedImage,
    Command,
    Happened,
    Happening,
    Load,
    Question,
    Report,
    RunJob,
    RunTask,
    error_of,
    failure_of,
)
from modules.models.files.hashing import HashProgress
from modules.processing.engine.status import EngineState, EngineStatus
from modules.processing.record.made import MadeImage
from modules.processing.record.output import Output
from modules.processing.request.result import Result
from modules.settings.values import Settings
from modules.system.texts import page_text
from modules.system.threads import start_loop

log = logging.getLogger(__name__)

POLL_S = 0.5  # how often it is looked whether a worker takes too long to stop
BACKOFF_S = 1.0  # before the first new start; doubled at each that follows without a finished job
MAX_BACKOFF_S = 60.0
STOP_WAIT_S = 2.0
ANSWER_WAIT_S = 600.0  # unloading waits for a running image


class AwayError(OSError):
    """Error where what a worker would run on is away, and it costs nothing to look again: the waits do not grow."""


class WorkerState(StrEnum):
    """Where a worker stands."""

    STARTING = page_text("starting")
    IDLE = page_text("idle")
    BUSY = page_text("busy")
    WAITING = page_text("waiting")  # it is gone, and is started again in a moment
    ENDED = page_text("ended")


@dataclass(frozen=True)
class WorkerFacts:
    """A worker as the page shows it. `message`: what went wrong last, "" for nothing."""

    name: str
    place: str  # "process 123, CPU", an address
    state: WorkerState
    task_id: str = ""
    title: str = ""
    model: str = ""
    restarts: int = 0
    jobs: int = 0  # that it has ended
    message: str = ""


class Transport(Protocol):
    """The server's end of a channel to one started worker."""

    @property
    def place(self) -> str:
        """Where it is, for people."""

    def send(self, command: Command) -> None:
        """Raises `OSError` when it is gone."""

    def receive(self) -> Report:
        """Waits; raises `EOFError` or `OSError` when it is gone."""

    def end(self) -> None:
        """End it now, whatever it does. May be called at any time, also when it is gone."""

    def cause(self) -> str:
        """Why it is gone, to follow "The worker": "was killed (signal 9)"."""


@dataclass(frozen=True)
class WorkerOptions:
    """Settings of workers, asked whenever it matters."""

    grace_s: float = 60.0  # how long a job may take to notice that it should stop; 0: for ever


@dataclass(frozen=True)
class ServerSide:
    """Side of the server: what a worker gets from the server, and what the server hears of it. `settings`: what is sent
    to it; None: it has its own. `files` gives what is known of model files: where it differs, the worker looks again.
    `loaded` receives the title of each model that the worker has loaded; `after_task` is called when it has done a
    task, which may have written model files."""

    settings: Callable[[], Settings] | None = None
    files: Callable[[], object] = lambda: None
    loaded: Callable[[str], object] = lambda title: None
    after_task: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class _Lost:
    cause: str


_Inbox = queue.SimpleQueue["Report | _Lost | None"]
"""Of a job or task: reports, and None where somebody asks for something."""


class WorkerExecutor:
    """Runs jobs one at a time on one worker. `start()` begins it in the background, `close()` ends it.

    `carries_images`: the worker does not see the files of this machine. `does_tasks`: tasks are done by the worker, and
    not in the thread that asks. `changed` is called when the worker can take a job, or no longer can.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[], Transport],
        output: Output,
        options: Callable[[], WorkerOptions] = WorkerOptions,
        server: ServerSide = ServerSide(),
        carries_images: bool = False,
        does_tasks: bool = False,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        self.name = name
        self.changed: Callable[[], object] = lambda: None
        self._begin = begin
        self._output = output
        self._options = options
        self._server = server
        self._carries_images = carries_images
        self._files_sent: object = None
        self._does_tasks = does_tasks
        self._backoff_s = backoff_s
        self._transport: Transport | None = None
        self._is_ready = False
        self._closing = threading.Event()
        self._hurry = threading.Event()
        self._inboxes: list[_Inbox] = []  # of what runs; the last is that of a job that a task lets in
        self._numbers = itertools.count()
        self._answers: dict[int, queue.SimpleQueue[Answer | _Lost]] = {}
        self._thread: threading.Thread | None = None
        self._running: Job | Task | None = None
        self._hashing: HashProgress | None = None
        self._there = threading.Event()
        self._failures = 0  # since a job was ended
        self._starts = 0
        self._ended_jobs = 0
        self._message = ""  # what went wrong last
        self._loss = ""  # the part of it that stays true when the worker is there again
        self._device = ""
        self._why = ""  # we ended it, to follow "The worker"
        self._wanted_load: Load | None = None
        self._status = EngineStatus(EngineState.EMPTY, page_text("The worker starts."))

    # -- its life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the worker in the background, and begin it again whenever it is gone."""
        assert self._thread is None, "the worker is started twice"
        self._thread = start_loop(f"featherweight-{self.name}", self._supervise)

    @property
    def is_ready(self) -> bool:
        """Whether it takes a job now."""
        return self._is_ready

    @property
    def status(self) -> EngineStatus:
        """Where its model stands; never waits."""
        return self._status

    @property
    def hashing(self) -> HashProgress | None:
        """How far the worker is with the sha256 of a checkpoint."""
        return self._hashing

    @property
    def facts(self) -> WorkerFacts:
        """Return it as the page shows it."""
        running, transport = self._running, self._transport
        if self._closing.is_set():
            state = WorkerState.ENDED
        elif self._is_ready:
            state = WorkerState.BUSY if running is not None else WorkerState.IDLE
        else:
            state = WorkerState.STARTING if transport is not None or not self._message else WorkerState.WAITING
        model = self._status.model
        return WorkerFacts(
            self.name,
            ", ".join(filter(None, (transport.place, self._device))) if transport is not None else "",
            state,
            running.task_id if running is not None else "",
            running.title if running is not None else "",
            model.title if model is not None else "",
            max(self._starts - 1, 0),
            self._ended_jobs,
            self._message,
        )

    def close(self) -> None:
        """End the worker; a job that it runs is lost to it."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._hurry.set()
        transport = self._transport
        if transport is not None:
            with contextlib.suppress(OSError):  # it is gone already
                transport.send(say.Stop())
            if self._thread is not None:
                self._thread.join(0 if self._running is not None else STOP_WAIT_S)
            transport.end()
        if self._thread is not None:
            self._thread.join(STOP_WAIT_S)

    def end_now(self, why: str) -> None:
        """End the worker in the middle of what it does; it starts again. `why` follows "The worker"."""
        self._why = why
        transport = self._transport
        if transport is not None:
            transport.end()

    def _supervise(self) -> bool:
        """One life of the worker, and the pause after it; False when it should end."""
        if self._closing.is_set():
            return False
        self._starts += 1
        self._hurry.clear()
        has_begun = is_away = False
        try:
            transport = self._transport = self._begin()
            if self._closing.is_set():
                transport.end()
        except Exception as error:
            if not isinstance(error, OSError):
                log.exception("%s could not be started", self.name)
            is_away = isinstance(error, AwayError)
            cause = f"could not be started: {error}"
        else:
            try:
                cause = self._read(transport)
            except Exception as error:
                log.exception("%s: what it reports cannot be read", self.name)
                cause = f"reported something that cannot be read ({type(error).__name__}: {error}) and was ended"
            has_begun = self._is_ready
            transport.end()
        self._lose(cause)
        if self._closing.is_set():
            return False
        self._failures += not is_away
        delay_s = min(self._backoff_s * 2 ** min(max(self._failures - 1, 0), 10), MAX_BACKOFF_S)
        self._loss = f"The worker {cause}." if has_begun else self._loss
        message = f"The worker {cause}. It starts again in {delay_s:.0f} s."
        is_known = is_away and message == self._message  # what is looked for every second is not said every second
        log.log(logging.DEBUG if is_known else logging.WARNING, "%s: %s", self.name, message)
        self._message = message
        self.changed()
        self._hurry.wait(delay_s)
        return True

    def _read(self, transport: Transport) -> str:
        """Take what the worker reports until it is gone; returns why it is."""
        while True:
            try:
                report = transport.receive()
            except (EOFError, OSError):
                return self._why or transport.cause()
            match report:
                case say.Ready(_, device):
                    self._device = device
                    self._is_ready = True
                    self._message = self._loss
                    self._files_sent = self._server.files()
                    if self._server.settings is not None:
                        self._send(say.ChangeSettings(self._server.settings()))
                    if self._wanted_load is not None:
                        self._send(self._wanted_load)
                    self._there.set()
                    self.changed()
                case say.EngineReport(status, hashing):
                    before, self._status, self._hashing = self._status.model, status, hashing
                    if status.model is not None and (before is None or before.title != status.model.title):
                        self._server.loaded(status.model.title)
                case Answer():
                    waiting = self._answers.get(report.number)
                    if waiting is not None:
                        waiting.put(report)
                case _:
                    if self._inboxes:
                        self._inboxes[-1].put(report)

    def _lose(self, cause: str) -> None:
        self._there.clear()
        self._is_ready, self._transport, self._why, self._device, self._hashing = False, None, "", "", None
        self._status = EngineStatus(EngineState.EMPTY, page_text(f"The worker {cause}."))
        for inbox in tuple(self._inboxes):
            inbox.put(_Lost(cause))
        for waiting in list(self._answers.values()):
            waiting.put(_Lost(cause))

    def _send(self, command: Command) -> None:
        """To the worker, if it is there: whoever waits for an answer hears of the loss in another way."""
        transport = self._transport
        if transport is None:
            return
        try:
            transport.send(command)
        except OSError as error:
            log.debug("%s: %s was not sent: %s", self.name, type(command).__name__, error)

    # -- model and settings --------------------------------------------------------------------------------------------

    def load(self, checkpoint: str | None) -> None:
        """Have a checkpoint loaded in the background, also by a worker that is still to be started."""
        self._wanted_load = Load(checkpoint)
        if self._is_ready:
            self._send(self._wanted_load)

    def unload(self) -> None:
        """Free the model; waits for a running image. Nothing where the worker is not there."""
        self._wanted_load = None
        if self._is_ready:
            self.ask(Question.UNLOAD)

    def change_settings(self, settings: Settings) -> None:
        """The settings are these now."""
        if self._is_ready:  # else it asks when it is there
            self._send(say.ChangeSettings(settings))

    def refresh(self) -> None:
        """Have it look for model files that were added or removed."""
        if self._is_ready:
            self._send(say.RefreshModels())

    def ask(self, question: Question, *arguments: Any, wait_s: float = 0.0) -> Any:
        """The worker's answer. A worker that is not there yet is waited for so long; raises `BusyError` where it is
        not there, and what went wrong there."""
        number = next(self._numbers)
        replies = self._answers[number] = queue.SimpleQueue()
        try:
            if not self._there.wait(wait_s):
                raise BusyError(f"The worker {self.name} is not there now. {self._message}".strip())
            self._send(Ask(number, question, arguments))
            reply = replies.get(timeout=ANSWER_WAIT_S)
        except queue.Empty:
            raise BusyError(f"The worker {self.name} does not answer.") from None
        finally:
            del self._answers[number]
        if isinstance(reply, _Lost):
            raise BusyError(f"The worker {self.name} {reply.cause}.")
        if reply.problem is not None:
            raise error_of(reply.problem)
        return reply.value

    # -- a job or task -------------------------------------------------------------------------------------------------

    def run(self, job: Job) -> Result:
        """Have the job computed; in the calling thread its reports become its progress, and its files are written."""
        made = tuple(_carried(job.made.values())) if self._carries_images else tuple(job.made.values())
        following = self._following(
            job,
            lambda refresh: RunJob(
                job.task_id, job.title, job.request, job.preview_every, refresh, job.is_let_in, made
            ),
        )
        assert isinstance(following.done, say.JobDone)
        return following.result(following.done)

    def run_task(self, task: Task) -> Outcome:
        """Have the task done."""
        spec = task.spec
        if not self._does_tasks:
            return spec.work(task)
        request, settings = (
            {**spec.request, **spec.attached},
            self._server.settings() if self._server.settings is not None else None,
        )
        facts = (task.task_id, task.type, task.title, request, dict(task.noted), task.created_at, settings)
        following = self._following(task, lambda refresh: RunTask(*facts, refresh))
        assert isinstance(following.done, say.TaskDone)
        self._server.after_task()
        return following.done.outcome

    def _following(self, entry: Job | Task, command: Callable[[bool], Command]) -> _Following:
        """Send the command, which receives whether model files were added or removed, and follow until it is done."""
        inbox: _Inbox = queue.SimpleQueue()
        before = self._running  # a task that lets this in
        self._inboxes.append(inbox)
        self._running = entry
        entry.on_asked = lambda: inbox.put(None)
        try:
            if not self._is_ready:
                raise WorkerLostError(f"The worker {self.name} is not there.")
            files = self._server.files()
            refresh, self._files_sent = files != self._files_sent, files
            self._send(command(refresh))
            following = _Following(self, entry, inbox)
            following.until_done()
        except WorkerLostError:
            raise
        except FeatherweightError:
            self._count_end()
            raise
        finally:
            self._inboxes.remove(inbox)
            self._running = before
            entry.on_asked = lambda: None
        self._count_end()
        return following

    def _count_end(self) -> None:
        self._ended_jobs += 1
        self._failures = 0
        self._message = self._loss = ""


class _Following:
    """A job or task on its worker: tells it what the user asks for, and the entry what it reports."""

    done: say.JobDone | say.TaskDone

    def __init__(self, worker: WorkerExecutor, entry: Job | Task, inbox: _Inbox) -> None:
        self._worker = worker
        self._entry = entry
        self._inbox = inbox
        self._finished: list[Image.Image] = []
        self._asked_at: float | None = None  # to stop
        self._asked_after_batch = False
        self._failure: Exception | None = None  # of ours, while the worker goes on
        self._admits = Admission(self._has_room)

    def until_done(self) -> None:
        """Follow; raises how it failed."""
        while True:
            report = self._next()
            is_over = isinstance(report, say.JobDone | say.TaskDone | say.JobFailed)
            if is_over and self._failure is not None:
                raise self._failure
            match report:
                case say.JobDone() | say.TaskDone():
                    self.done = report
                    return
                case say.JobFailed():
                    raise error_of(report)
                case _:
                    self._apply_or_stop(report)

    def result(self, done: say.JobDone) -> Result:
        """Return it with the pixels of the images that were reported before."""
        images = tuple(
            image if number is None else replace(image, image=self._finished[number]) for image, number in done.images
        )
        return replace(done.result, images=images)

    def _next(self) -> Report:
        while True:
            try:
                report = self._inbox.get(timeout=POLL_S)
            except queue.Empty:
                report = None
            if report is None:
                self._pass_on()
                continue
            if isinstance(report, _Lost):
                if self._asked_at is not None:
                    kept = "; finished images are kept" if isinstance(self._entry, Job) else ""
                    raise Interrupted(f"Interrupted by the user; the worker {report.cause}{kept}.")
                raise WorkerLostError(f"The worker {self._worker.name} {report.cause}.")
            self._pass_on()
            return report

    def _pass_on(self) -> None:
        """Pass on what the user asks for."""
        worker, entry = self._worker, self._entry
        if self._asked_at is not None:
            grace_s = worker._options().grace_s
            saves = isinstance(entry, Task) and entry.spec.pauses  # its state, which must not be cut off
            if grace_s and not saves and time.monotonic() - self._asked_at > grace_s:
                worker.end_now(f"did not stop within {grace_s:g} s and was ended")
            return
        try:
            entry.check()
        except Interrupted:
            self._asked_at = time.monotonic()
            worker._send(say.Interrupt(entry.task_id))
        except Skipped:
            worker._send(say.Skip(entry.task_id))
        if isinstance(entry, Job) and entry.is_stopping_after_batch and not self._asked_after_batch:
            self._asked_after_batch = True
            worker._send(say.Interrupt(entry.task_id, after_batch=True))

    def _has_room(self, job: Job) -> bool:
        """Whether the worker has room for a job beside the task that it does."""
        try:
            return bool(self._worker.ask(Question.ROOM, job.request))
        except FeatherweightError:  # the worker is gone, or cannot say: the image waits
            return False

    def _apply_or_stop(self, report: Report) -> None:
        """Apply a report. Where that fails the worker is asked to stop, and is followed until it has: what it still
        reports would else be taken for reports about the next job."""
        try:
            self._apply(report)
        except (WorkerLostError, Interrupted):
            raise
        except Exception as error:
            log.exception("%s: a report about %s failed", self._worker.name, self._entry.task_id)
            self._failure = self._failure or error
            self._asked_at = self._asked_at or time.monotonic()
            self._worker._send(say.Interrupt(self._entry.task_id))

    def _apply(self, report: Report) -> None:
        entry = self._entry
        match report:
            case Happened(what, arguments):
                if what is Happening.FINISHED_IMAGE:
                    self._finished.append(arguments[0].image)
                getattr(entry, what.value)(*arguments)
            case say.SaveImage():
                self._answer(report.number, lambda: self._saved(report))
            case say.SaveSource(number, source, request):
                self._answer(number, lambda: self._worker._output.save_source(source, request))
            case say.PutOnRecord(number, key, data) if isinstance(entry, Task):
                self._answer(number, lambda: entry.note(key, data))
            case say.LetIn(number) if isinstance(entry, Task):
                self._answer(number, lambda: entry.let_images_in(self._admits))
            case _:
                log.warning("%s sent what nobody asked for: %s", self._worker.name, type(report).__name__)

    def _answer(self, number: int, work: Callable[[], Any]) -> None:
        try:
            answer = Answer(number, work())
        except (WorkerLostError, Interrupted):
            raise
        except Exception as error:
            log.exception("a file of %s could not be written", self._entry.task_id)
            answer = Answer(number, problem=failure_of(error))
        self._worker._send(answer)

    def _saved(self, wanted: say.SaveImage) -> tuple[Path | None, str | None]:
        def on_path(path: Path, fingerprint: str) -> None:
            """The file appears when the record names it."""
            self._worker._send(say.PathChosen(wanted.number, path, fingerprint))
            while not isinstance(report := self._next(), say.Noted) or report.number != wanted.number:
                self._apply(report)

        return self._worker._output.put(wanted.image, wanted.unsaved, on_path)


def _carried(made: Any) -> list[MadeImage]:
    """Images of an earlier try with their pixels; one that cannot be read is made again."""
    carried: list[MadeImage] = []
    for image in made:
        found = image.read()
        if found is not None:
            facts = (image.key, image.path, image.infotext, image.seed, image.subseed, image.role)
            carried.append(CarriedImage(*facts, image=found.image))
    return carried
