"""Ray on this machine with two actors. Skipped where Ray is not installed (`requirements-farm.txt`)."""

import contextlib
import importlib.util
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lib_farm.bridge import LOCAL
from lib_farm.farm import Farm, FarmTransport, check_installed, farm_workers
from modules.errors import InvalidValueError
from modules.flags.flags import UsageError, parse_flags
from modules.jobs.job import Job, JobStatus
from modules.jobs.lanes import Lane
from modules.jobs.store import JobStore
from modules.jobs.workers.executor import WorkerExecutor, WorkerState
from modules.processing.record.output import Output
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage
from tests.jobs.fake_worker import build
from tests.queues import JobQueue

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


class Head:
    """A queue with two actors."""

    def __init__(self, folder: Path, farm: Farm) -> None:
        self.folder = folder
        self.told: list[GeneratedImage] = []
        self.begun: list[FarmTransport] = []
        self.workers = [
            WorkerExecutor(name, self.noting(begin), Output(folder), carries_images=True, backoff_s=0.01)
            for name, begin in farm_workers(farm, 2, build, folder)
        ]
        lanes = [Lane(one, one.name, lambda one=one: one.is_ready, is_endable=True) for one in self.workers]  # type: ignore[misc]
        self.queue = JobQueue(lanes, JobStore(None))
        self.queue.images.listen(self)
        for worker in self.workers:
            worker.changed = self.queue.dispatcher.wake
            worker.start()
        self.queue.start()

    def noting(self, begin: Callable[[], FarmTransport]) -> Callable[[], FarmTransport]:
        def now() -> FarmTransport:
            self.begun.append(begin())
            return self.begun[-1]

        return now

    def saved_late(self, task_id: str, user: str, image: GeneratedImage, before: Path | None) -> None:
        raise AssertionError

    def finished(self, task_id: str, user: str, image: GeneratedImage) -> None:
        self.told.append(image)


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    farm = Farm(LOCAL, ROOT)
    yield farm
    farm.close()


def _actors() -> list[int]:
    """The processes of Ray that run an actor of ours."""
    names = {int(path.parent.name): path for path in Path("/proc").glob("[0-9]*/cmdline")}
    return [number for number, path in names.items() if b"ray::FarmActor" in path.read_bytes()]


@needs_ray
def test_an_actor_that_is_killed_in_the_middle_loses_nothing(farm: Farm, tmp_path: Path) -> None:
    head = Head(tmp_path, farm)
    jobs = [
        head.queue.submit(
            GenerationRequest(
                prompt="slow", seed=seed, subseed=0, steps=4, width=16, height=16, batch_count=3, save_images=True
            )
        )
        for seed in (10, 20, 30, 40)
    ]
    end = time.monotonic() + PATIENCE_S
    while not any(job.images for job in jobs[:2]):
        assert time.monotonic() < end, "no image was made"
        time.sleep(0.01)
    os.kill(_actors()[0], signal.SIGKILL)
    assert all(job.wait(PATIENCE_S) and job.status is JobStatus.DONE for job in jobs)
    assert [[image.seed for image in job.result().images] for job in jobs] == [
        [seed, seed + 1, seed + 2] for seed in (10, 20, 30, 40)
    ]
    files = sorted(tmp_path.rglob("*.png"))
    assert len(files) == len({image.path for image in head.told}) == len(head.told) == 12  # none lost, none twice
    assert sum("Ray actor was lost" in text for job in jobs for text in job.result().notices) == 1
    assert sum(worker.facts.restarts for worker in head.workers) == 1
    head.queue.close()


def test_a_farm_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidValueError, match=r"pip install -r requirements-farm\.txt"):
        check_installed()
    with pytest.raises(UsageError, match="--farm needs --workers N"):
        parse_flags(["--farm", "auto"])
    assert parse_flags(["--farm", "auto", "--workers", "2"]).farm == "auto"


class FakeHead:
    """The head of a cluster of the `ray` in `fake_cluster/`: who connects is told which head it is, counted from 1."""

    def __init__(self) -> None:
        self.count = 0
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.count += 1
        self.connections: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._accept, args=(self.listener, self.count), daemon=True)
        self.thread.start()

    def _accept(self, listener: socket.socket, number: int) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            with contextlib.suppress(OSError):  # it looked only whether the port is open
                connection.sendall(b"%d\n" % number)

    def kill(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()
        for connection in self.connections:
            connection.close()


def test_a_head_that_dies_and_comes_back_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "fake_cluster")  # what is started finds it there too
    cluster = FakeHead()
    head = Head(tmp_path, Farm(cluster.address, ROOT))

    def submit(seed: int, prompt: str = "a") -> Job:
        facts = {"steps": 4, "width": 16, "height": 16, "subseed": 0}
        return head.queue.submit(GenerationRequest(prompt=prompt, seed=seed, **facts))  # type: ignore[arg-type]

    def until(condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, [worker.facts for worker in head.workers]
            time.sleep(0.01)

    def is_made(job: Job) -> bool:
        return job.wait(PATIENCE_S) and job.status is JobStatus.DONE

    assert is_made(submit(1))
    until(lambda: all(worker.facts.state is WorkerState.IDLE for worker in head.workers))
    cluster.kill()
    waiting = [submit(seed) for seed in (2, 3)]
    words = f"the head of the cluster ({cluster.address}) cannot be reached; it is looked for until it is back"
    until(lambda: all(words in worker.facts.message for worker in head.workers))
    assert all(worker.facts.state is WorkerState.WAITING for worker in head.workers)
    cluster.start()
    assert all(is_made(job) for job in waiting)
    until(lambda: all(worker.facts.state is WorkerState.IDLE for worker in head.workers))
    cluster.kill()
    cluster.start()  # at once: another one is there before anybody has looked
    assert is_made(submit(4))
    until(lambda: all(worker.facts.state is WorkerState.IDLE for worker in head.workers))
    head.queue.close()
    cluster.kill()


def test_what_ray_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "fake_cluster")
    farm = Farm("auto", ROOT)  # the stand-in has none on this machine
    transport = farm.begin(build, tmp_path)
    with pytest.raises(EOFError, match=r"gave no worker \(no cluster runs on this machine\)"):
        transport.receive()
    assert transport.cause().startswith("could not be started: the cluster (auto)")
    transport.end()
