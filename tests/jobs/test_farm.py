"""Ray on this machine with two actors. Skipped where Ray is not installed (`requirements-farm.txt`)."""

import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modules.errors import InvalidValueError
from modules.flags.flags import UsageError, parse_flags
from modules.jobs.job import JobStatus
from modules.jobs.lanes import Lane
from modules.jobs.queue import JobQueue
from modules.jobs.store import JobStore
from modules.jobs.workers.executor import WorkerExecutor
from modules.jobs.workers.farm import LOCAL, Farm, FarmTransport, check_installed, farm_workers
from modules.processing.record.output import Output
from modules.processing.record.result import GeneratedImage
from modules.processing.request import GenerationRequest
from tests.jobs.fake_worker import build

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
        self.queue.listen(self)
        for worker in self.workers:
            worker.changed = self.queue.wake
            worker.start()
        self.queue.start()

    def noting(self, begin: Callable[[], FarmTransport]) -> Callable[[], FarmTransport]:
        def now() -> FarmTransport:
            self.begun.append(begin())
            return self.begun[-1]

        return now

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
