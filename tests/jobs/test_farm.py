"""Ray on this machine with two actors. Skipped where Ray is not installed (`requirements-farm.txt`)."""

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modules.errors import InvalidValueError
from modules.flags.flags import UsageError, parse_flags
from modules.jobs.job import Job, JobStatus
from modules.jobs.lanes import Lane
from modules.jobs.store import JobStore
from modules.jobs.workers import farm as farming
from modules.jobs.workers.executor import WorkerExecutor, WorkerState
from modules.jobs.workers.farm import LOCAL, Farm, FarmActor, FarmTransport, check_installed, farm_workers
from modules.processing.record.output import Output
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage
from tests.jobs.fake_worker import build
from tests.queues import JobQueue

ROOT = Path(__file__).parents[2]
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


@needs_ray
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
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
    end = time.monotonic() + 60
    while not any(job.images for job in jobs[:2]):
        assert time.monotonic() < end, "no image was made"
        time.sleep(0.01)
    head.begun[0].end()
    assert all(job.wait(60) and job.status is JobStatus.DONE for job in jobs)
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


class FakeRay:
    """What the program uses of Ray, with a head that can die: then calls hang, as they do there."""

    class Lost(Exception):  # noqa: N818 - stands for Ray's own
        pass

    class exceptions:  # noqa: N801
        RayError: type[Exception]

    def __init__(self) -> None:
        self.exceptions.RayError = self.Lost
        self.head = 1  # 0: it is dead
        self.heads = 1
        self.own: int | None = None  # the head that this driver was connected to
        self.back = threading.Event()
        self.inits = 0

    def kill_head(self) -> None:
        self.head = 0
        self.back.clear()

    def start_head(self) -> None:
        self.heads += 1
        self.head = self.heads
        self.back.set()

    def _answer(self) -> None:
        if self.head == 0:
            self.back.wait(30)

    def init(self, **options: object) -> None:
        self.inits += 1
        if self.head == 0:
            raise ConnectionError("nobody listens")
        self.own = self.head

    def shutdown(self) -> None:
        self.own = None

    def get_runtime_context(self) -> "FakeRay":
        return self

    def get_node_id(self) -> str:
        return str(self.own)

    gcs_address = "head:6379"

    def nodes(self) -> list[dict[str, object]]:
        self._answer()
        return [{"NodeID": str(self.head), "Alive": True}]

    def cluster_resources(self) -> dict[str, float]:
        self._answer()
        return {"CPU": 2.0}

    def remote(self, cls: Callable[..., FarmActor]) -> "FakeRay":
        self.cls = cls
        return self

    def options(self, **_: object) -> "FakeActorClass":
        return FakeActorClass(self, self.cls)

    def wait(self, references: list["FakeReference"], timeout: float) -> tuple[list[object], list[object]]:
        (reference,) = references
        return ([reference], []) if reference.done.wait(timeout) else ([], [reference])

    def get(self, reference: "FakeReference", timeout: float | None = None) -> object:
        if not reference.done.wait(timeout):
            raise self.Lost("timeout")
        return reference.value

    def kill(self, actor: object) -> None:
        """It is gone with its head already."""


class FakeReference:
    def __init__(self, ray: FakeRay, head: int, work: Callable[[], object]) -> None:
        self.done, self.value = threading.Event(), None

        def run() -> None:
            value = work()
            if ray.head == head:  # what an actor of a dead cluster says reaches nobody
                self.value = value
                self.done.set()

        threading.Thread(target=run, daemon=True).start()


class FakeActorClass:
    def __init__(self, ray: FakeRay, cls: Callable[..., FarmActor]) -> None:
        self.ray, self.cls = ray, cls

    def remote(self, *arguments: object) -> "FakeActor":
        return FakeActor(self.ray, self.cls(*arguments))


class FakeMethod:
    def __init__(self, ray: FakeRay, head: int, method: Callable[..., object]) -> None:
        self.ray, self.head, self.method = ray, head, method

    def remote(self, *arguments: object) -> FakeReference:
        return FakeReference(self.ray, self.head, lambda: self.method(*arguments))


class FakeActor:
    _actor_id = b"\0\1\2\3"

    def __init__(self, ray: FakeRay, actor: FarmActor) -> None:
        self.put = FakeMethod(ray, ray.head, actor.put)
        self.take = FakeMethod(ray, ray.head, actor.take)


def test_a_head_that_dies_and_comes_back_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(farming, "CHECK_S", 0.1)
    monkeypatch.setattr(os, "_exit", lambda code: None)  # actors are in this process here
    is_open = lambda address: address == "head:6379" and ray.head != 0  # noqa: E731
    head = Head(tmp_path, Farm("head:6379", ROOT, call_s=0.3, is_open=is_open, watch_s=0.05))

    def submit(seed: int, prompt: str = "a") -> Job:
        facts = {"steps": 4, "width": 16, "height": 16, "subseed": 0}
        return head.queue.submit(GenerationRequest(prompt=prompt, seed=seed, **facts))  # type: ignore[arg-type]

    def until(condition: Callable[[], object]) -> None:
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end, [worker.facts for worker in head.workers]
            time.sleep(0.01)

    first = submit(1)
    assert first.wait(20) and first.status is JobStatus.DONE
    ray.kill_head()
    waiting = [submit(seed) for seed in (2, 3)]
    until(lambda: all("the head of the cluster (head:6379) cannot be reached" in w.facts.message for w in head.workers))
    assert all(worker.facts.state is not WorkerState.IDLE for worker in head.workers)
    ray.start_head()
    assert all(job.wait(20) and job.status is JobStatus.DONE for job in waiting)
    ray.kill_head()
    ray.start_head()  # at once: another one is there before anybody has asked
    last = submit(4)
    assert last.wait(20) and last.status is JobStatus.DONE
    head.queue.close()
