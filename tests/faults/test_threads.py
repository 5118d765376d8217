"""Long-lived threads: whatever is raised in one, the next piece of work is done, and the log says what went wrong."""

import ast
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from PIL import Image

from lib_remote_workers.sdapi import Address, Offer, Patience, RemoteWorker
from modules.history.service import HistoryService
from modules.jobs.job import JobStatus
from modules.jobs.store import JobStore
from modules.jobs.workers import protocol as say
from modules.jobs.workers.executor import ServerSide, WorkerExecutor, WorkerOptions
from modules.jobs.workers.loop import WorkerLoop
from modules.memory import timeline as timelines
from modules.memory.timeline import MemoryTimeline
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.record import spool as spooling
from modules.processing.record.output import Output
from modules.processing.record.spool import Spool
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, ImageRole
from modules.settings.values import Settings
from modules.system.threads import start_loop
from tests.jobs.fake_worker import FakeHost
from tests.jobs.test_queue import Stepping
from tests.processing.test_spool import image, save
from tests.queues import JobQueue

ROOT = Path(__file__).parents[2]
RAISED = (ValueError, RecursionError, OverflowError, MemoryError, SystemExit, KeyboardInterrupt)
ONCE = {
    ("modules/jobs/dispatch.py", "self._on_done"): "an action when the queue is done",
    ("modules/jobs/batch.py", "batch.run"): "a batch; each input is guarded",
    ("modules/jobs/workers/loop.py", "self._answer"): "one question",
    ("extensions-builtin/remote-workers/lib_remote_workers/sdapi.py", "post"): "one job on another server",
    ("extensions-builtin/farm/lib_farm/bridge.py", "self._run"): "the process's own work; it ends with it",
    ("extensions-builtin/farm/lib_farm/bridge.py", "self._carry_commands"): "whatever is raised ends the process",
    ("extensions-builtin/farm/lib_farm/bridge.py", "self._ray.shutdown"): "the process ends",
    ("modules/processing/engine/engine.py", "self._load_quietly"): "one load",
    ("modules/models/files/hashing.py", "self._take"): "one file",
    ("modules/memory/device_probe.py", "work"): "one measurement; what it raises is the caller's",
    ("compat/loading/guards.py", "copy_context().run"): "one call of an extension",
    ("webui.py", "_stop_when"): "waits for the end",
}
"""Threads that end with one piece of work, by file and what they run."""


def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


class Once:
    """Raises at the first call, and passes on all others."""

    def __init__(self, then: Callable[..., Any], error: type[BaseException] = RecursionError) -> None:
        self._then, self._error = then, error
        self.calls = 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise self._error("planted")
        return self._then(*given, **named)

    def __get__(self, owner: object, kind: type | None = None) -> Callable[..., Any]:
        return lambda *given, **named: self(owner, *given, **named)


@pytest.mark.parametrize("error", RAISED)
def test_no_exception_ends_a_loop(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    turns = iter((error, error, None, StopIteration))
    done = threading.Event()

    def turn() -> bool:
        match next(turns):
            case None:
                return True
            case wanted if wanted is StopIteration:
                done.set()
                return False
            case wanted:
                raise wanted("what went wrong")

    with caplog.at_level(logging.ERROR):
        thread = start_loop("featherweight-test", turn)
        assert done.wait(10)
        thread.join(10)
    assert not thread.is_alive()
    said = [record for record in caplog.records if "featherweight-test goes on" in record.message]
    assert [bool(record.exc_info) for record in said] == [True, False], "the same again needs no second traceback"


def test_every_thread_is_a_loop_or_ends_with_its_work() -> None:
    found = set()
    for path in (
        *ROOT.glob("*.py"),
        *(ROOT / "modules").rglob("*.py"),
        *(ROOT / "compat").rglob("*.py"),
        *(ROOT / "extensions-builtin").rglob("*.py"),
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "Thread"):
                target = next(ast.unparse(key.value) for key in node.keywords if key.arg == "target")
                found.add((path.relative_to(ROOT).as_posix(), target))
    assert found - {("modules/system/threads.py", "loop")} == set(ONCE)


# -- the queue --------------------------------------------------------------------------------------------------------


@pytest.fixture
def line(tmp_path: Path) -> Iterator[JobQueue]:
    executor = Stepping()
    executor.go.set()
    line = JobQueue(executor, JobStore(tmp_path / "jobs.sqlite"))
    yield line
    line.close()


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("place", ["take", "left", "flush"])
def test_the_lane_of_the_queue(
    line: JobQueue, place: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = line.store.file if place == "flush" else line.turns
    if place == "flush":
        monkeypatch.setattr(type(line.store.file), "is_behind", property(lambda file: planted.calls == 0))
    planted = Once(getattr(owner, place), error)
    monkeypatch.setattr(owner, place, planted)
    line.start()
    until(lambda: planted.calls or place == "left")
    first, second = (line.submit(GenerationRequest(steps=1), task_id=name) for name in ("a", "b"))
    assert first.wait(60) and second.wait(60)
    assert second.status is JobStatus.DONE and planted.calls > 1 - (place == "flush")


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("place", ["started", "ended"])
def test_a_record_that_fails_costs_one_job(
    line: JobQueue, place: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line.store, place, Once(getattr(line.store, place), error))
    line.start()
    first = line.submit(GenerationRequest(steps=1))
    assert first.wait(60) and first.status is JobStatus.FAILED and error.__name__ in str(first.error)
    second = line.submit(GenerationRequest(steps=1))
    assert second.wait(60) and second.status is JobStatus.DONE
    record = line.store.get(first.task_id)
    assert record is not None and record.status is JobStatus.FAILED and error.__name__ in str(record.error)


def test_whoever_is_told_of_a_job_or_an_image_costs_no_job(line: JobQueue) -> None:
    class Broken:
        def finished(self, task_id: str, user: str, image: GeneratedImage) -> None:
            raise RecursionError("planted")

        saved_late = finished

    line.images.listen(Broken())  # type: ignore[arg-type]
    job = line.submit(GenerationRequest(steps=1))
    told: list[str] = []

    def fails() -> NoReturn:
        raise OverflowError("planted")

    job.when_final(fails)
    job.when_final(lambda: told.append(job.task_id))
    line.images.finished(job, GeneratedImage(Image.new("RGB", (8, 8)), "x", 1, 1))
    line.start()
    assert job.wait(60) and job.status is JobStatus.DONE
    until(lambda: told)


def test_what_cannot_be_looked_at_before_it_runs_does_not_stop_the_line(
    line: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> NoReturn:
        raise RecursionError("planted")

    monkeypatch.setattr(line.turns, "_missing", fails)
    monkeypatch.setattr(line.lanes[0], "takes", fails)
    line.start()
    jobs = [line.submit(GenerationRequest(steps=1)) for _ in range(2)]
    assert all(job.wait(60) and job.status is JobStatus.DONE for job in jobs)


# -- the history, and images that are saved late -----------------------------------------------------------------------


@pytest.fixture
def history(tmp_path: Path) -> Iterator[HistoryService]:
    service = HistoryService.open(tmp_path / "history.sqlite", tmp_path / "thumbnails.sqlite", tmp_path / "trash")
    yield service
    service.close()


def made(folder: Path, number: int) -> GeneratedImage:
    path = folder / f"{number}.png"
    pixels = Image.new("RGB", (8, 8), (number, 0, 0))
    pixels.save(path)
    return GeneratedImage(pixels, "a cat\nSteps: 1", number, number, path, ImageRole.SAMPLE)


def test_the_thread_of_thumbnails(history: HistoryService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_late, keep = Once(history.history.take_late), Once(history.thumbnails.keep)
    monkeypatch.setattr(history.thumbnails, "keep", keep)
    history.finished("a", "", made(tmp_path, 1))
    until(lambda: keep.calls == 1)
    monkeypatch.setattr(history.history, "take_late", lambda *given: None)
    history.history._late.clear()
    monkeypatch.setattr(history.history, "take_late", take_late)
    with pytest.raises(RecursionError):
        history.finished("b", "", made(tmp_path, 2))
    history.finished("c", "", made(tmp_path, 3))
    until(lambda: keep.calls == 2)
    assert history.history.count() == 3


def test_an_image_that_the_history_cannot_take_holds_up_no_other(
    history: HistoryService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    index = history.history._index

    def refused(entry: Any) -> None:
        if entry.path.name == "1.png":
            raise OverflowError("Python int too large to convert to SQLite INTEGER")
        index(entry)

    monkeypatch.setattr(history.history, "_index", refused)
    for number in (1, 2, 3):
        history.finished(str(number), "", made(tmp_path, number))
    assert sorted(entry.path.name for entry in history.history.search()) == ["2.png", "3.png"]
    assert f"{tmp_path / '1.png'} is left out" in caplog.text and not history.history.is_behind


@pytest.mark.parametrize("error", RAISED)
def test_the_thread_of_the_import(
    history: HistoryService, tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        made(folder, 1)
    monkeypatch.setattr(history.importer, "_import", Once(history.importer._import, error))
    for folder in folders:
        history.importer.add(folder)
    assert history.importer.wait(60)
    first, second = (next(i for i in history.history.imports.all() if i["folder"] == str(folder)) for folder in folders)
    assert first["state"] == "failed" and error.__name__ in first["error"]
    assert second["state"] == "done" and second["counts"]["added"] == 1


def test_an_import_of_a_folder_that_is_gone_does_not_keep_the_server_from_starting(history: HistoryService) -> None:
    history.history.imports.note(Path("/nowhere/at all"), "running", {})
    history.importer.start()
    (found,) = history.history.imports.all()
    assert found["state"] == "failed" and "/nowhere/at all" in found["error"]


def test_the_thread_of_late_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool((tmp_path / "spool",), retry_s=0.02)
    told: list[Path] = []
    spool.listen(Once(lambda saved: told.append(saved.after)))
    (tmp_path / "outputs").write_text("in the way")
    for _ in range(3):
        save(tmp_path, spool)
    assert image().infotext
    monkeypatch.setattr(spooling.Unsaved, "save", Once(spooling.Unsaved.save))
    (tmp_path / "outputs").unlink()
    until(lambda: not spool.notice)
    assert len(list((tmp_path / "outputs").rglob("*.webp"))) == 2, "one was lost to what was planted"
    assert len(told) == 1
    spool.close()


# -- workers ----------------------------------------------------------------------------------------------------------


class Reports:
    """A transport that gives what it holds: reports, and exceptions to be raised."""

    place = "here"

    def __init__(self, *held: Any) -> None:
        self._held: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for item in held:
            self._held.put(item)
        self.sent: list[Any] = []

    def receive(self) -> Any:
        item = self._held.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def send(self, command: Any) -> None:
        self.sent.append(command)

    def cause(self) -> str:
        return "is gone"

    def end(self) -> None:
        self._held.put(EOFError())


@pytest.mark.parametrize("error", RAISED)
def test_the_thread_that_supervises_a_worker(error: type[BaseException], tmp_path: Path) -> None:
    lives = iter((Reports(error("planted")), Reports(say.Ready(1, "CPU"))))
    worker = WorkerExecutor(
        "worker-1", lambda: next(lives), Output(tmp_path), WorkerOptions, ServerSide(), backoff_s=0.01
    )
    worker.start()
    until(lambda: worker.is_ready)
    worker.close()


def test_a_worker_that_has_failed_a_thousand_times_is_begun_again(tmp_path: Path) -> None:
    """2 to the number of failures is no float any more."""

    def begin() -> NoReturn:
        raise OSError("no")

    worker = WorkerExecutor("worker-1", begin, Output(tmp_path), WorkerOptions, ServerSide(), backoff_s=1e-9)
    worker.start()
    until(lambda: worker.facts.restarts > 1100)
    worker.close()


@pytest.mark.parametrize("error", RAISED)
def test_the_thread_that_looks_for_another_server(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Offer, "asked", lambda client: Offer())
    worker = RemoteWorker(
        Address.of("http://127.0.0.1:9"),
        Output(tmp_path),
        CheckpointCatalogue((), HashCache(tmp_path / "hashes.json")),
        embeddings=Once(tuple, error),
        patience=Patience(look_s=0.01),
    )
    worker.start()
    until(lambda: worker.is_ready)
    worker.close()


@pytest.mark.parametrize("what", ["listen", "control", "status", "compute", "pickle"])
def test_the_threads_of_a_worker(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, ended = Reports(), threading.Event()
    host = FakeHost(Output(tmp_path))
    loop = WorkerLoop(channel, lambda *_: host, tmp_path, lambda code: ended.set())
    if what == "listen":
        controls = loop._controls
        planted = SimpleNamespace(put=Once(controls.put), get=controls.get)
        monkeypatch.setattr(loop, "_controls", planted)
    elif what == "control":
        monkeypatch.setattr(FakeHost, "load", Once(FakeHost.load, SystemExit))
    elif what == "status":
        monkeypatch.setattr(FakeHost, "hashing", property(Once(lambda host: None)), raising=False)
    elif what == "compute":
        monkeypatch.setattr(FakeHost, "run", Once(FakeHost.run, SystemExit))
    else:
        monkeypatch.setattr(channel, "send", _refusing(channel))
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    if what in ("compute", "pickle"):
        for number in range(2):
            request = GenerationRequest(prompt="x", seed=1, subseed=1, steps=1, save_images=False)
            channel._held.put(say.RunJob(f"job-{number}", "x", request, 0, False, False, ()))
        until(
            lambda: (
                [type(r) for r in channel.sent if isinstance(r, say.JobFailed | say.JobDone)]
                == [say.JobFailed, say.JobDone]
            )
        )
    elif what == "status":
        until(lambda: any(isinstance(report, say.EngineReport) for report in channel.sent))
    else:
        for name in ("first", "second"):
            channel._held.put(say.Load(name))
        until(lambda: host.status.message == "loaded second")
    channel._held.put(say.Stop())
    thread.join(60)
    assert not thread.is_alive()


def _refusing(channel: Reports) -> Callable[[Any], None]:
    refused: list[Any] = []

    def send(report: Any) -> None:
        if isinstance(report, say.JobDone) and not refused:
            refused.append(report)
            raise TypeError("cannot pickle it")
        channel.sent.append(report)

    return send


# -- the engine -------------------------------------------------------------------------------------------------------


def test_the_thread_that_learns_from_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = MemoryEstimator.__new__(MemoryEstimator)
    estimator._turn, estimator._learning, estimator._closed = threading.Lock(), None, False
    estimator._observation = None
    learnt: list[object] = []
    monkeypatch.setattr(estimator, "learn", Once(lambda *given: learnt.append(given), SystemExit))
    estimator.learn_later(GenerationRequest(), None)  # type: ignore[arg-type]
    until(lambda: estimator._learning is None)
    estimator.learn_later(GenerationRequest(), None)  # type: ignore[arg-type]
    until(lambda: learnt)


def test_the_thread_that_measures_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryTimeline(torch.device("cpu"), interval_s=0.005) as measured:
        monkeypatch.setattr(timelines, "read_memory", Once(timelines.read_memory))
        until(lambda: len(measured.record().samples) > 2)


# -- numbers that a record's columns cannot hold -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_seeds_are_kept_exactly(seed: int, tmp_path: Path) -> None:
    from modules.jobs.job import Job
    from modules.processing.request.batch import draft_of
    from modules.processing.request.request import request_from_json, request_to_json

    request = GenerationRequest(seed=seed, subseed=seed, batch_size=2, settings=Settings())
    store = JobStore(tmp_path / "jobs.sqlite")
    job = Job("a", request)
    store.add(job)
    path = tmp_path / "x.png"
    path.write_bytes(b"x")
    store.images.done("a", GeneratedImage(Image.new("RGB", (8, 8)), "x", seed, seed, path, key="0/0/0"))
    (kept,) = store.images.of("a")["a"]
    assert (kept.image.seed, kept.image.subseed) == (seed, seed)
    store.ended("a", JobStatus.INTERRUPTED)
    record = store.get("a")
    assert record is not None and record.outcome is not None
    assert record.outcome["images"][0]["seed"] == seed and record.request["seed"] == seed
    assert request_from_json(record.request).seed == seed
    assert request_from_json(request_to_json(request)) == request
    assert draft_of(request, 0).seeds == [seed, (seed + 1) % 2**64]
    store.file.close()
