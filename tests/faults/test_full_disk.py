"""A disk that is full while a job runs: afterwards its image, its record and the history say the same."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from PIL import Image

from modules.history.service import HistoryService
from modules.jobs.job import Job
from modules.jobs.store import JobStore
from modules.processing.record.output import Output, name_context
from modules.processing.record.spool import Spool
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, Result
from tests.jobs.fake_worker import result_of
from tests.queues import JobQueue


class Saving:
    """An executor that saves one image as the program does, and ends its job when it may."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.before_end: Callable[[], object] = lambda: None

    def run(self, job: Job) -> Result:
        request = job.request
        image = GeneratedImage(Image.new("RGB", (8, 8), (1, 2, 3)), "a cat", request.seed, 0, key="0/0/0")
        context = name_context(request, "m", "h", (request.seed,), datetime.now().astimezone())
        output = replace(self.output, task_id=job.task_id)
        saved, _ = output.save(image, request, context, on_path=lambda path, found: job.saving(image, path, found))
        job.finished_image(saved)
        self.before_end()
        return result_of(request, [saved], False)

    def close(self) -> None:
        """Holds nothing."""


class Place:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.spool = Spool((data / "spool",), retry_s=0.05)
        self.history = HistoryService.open(data / "history.sqlite", None, data / "trash")
        self.executor = Saving(Output(data, spool=self.spool))
        self.queue = JobQueue(self.executor, JobStore(data / "jobs.sqlite"))
        self.queue.images.listen(self.history)
        self.spool.listen(self.queue.images.saved_late)
        self.queue.start()

    def until(self, question: Callable[[], object]) -> None:
        until = time.monotonic() + 120
        while not question():
            assert time.monotonic() < until, "it did not come"
            time.sleep(0.02)

    def check(self, job: Job) -> None:
        """One file, which job, record and history name, the last with the job."""
        (path,) = (self.data / "outputs").rglob("*.png")
        assert [image.path for image in job.result().images] == [path]
        record = self.queue.record(job.task_id)
        assert record.outcome is not None and [item["path"] for item in record.outcome["images"]] == [str(path)]
        entries = self.history.history.search("")
        assert [(entry.path, entry.task_id) for entry in entries] == [(path, job.task_id)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.queue.close()
    found.spool.close()
    found.history.close()


@pytest.mark.parametrize("ends", ["before the image is saved", "after the image is saved"])
@pytest.mark.parametrize("kept", ["aside", "in memory"])
def test_one_entry_with_the_true_path_and_its_job(place: Place, ends: str, kept: str) -> None:
    if kept == "in memory":
        (place.data / "spool").write_text("in the way")
    database = place.history.history.file.db
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")  # what SQLite answers then is what a full disk makes it answer
    (place.data / "outputs").write_text("in the way")

    def room() -> None:
        (place.data / "outputs").unlink()
        place.until(lambda: place.spool.notice == "")

    if ends == "after the image is saved":
        place.executor.before_end = room
    job = place.queue.submit(GenerationRequest(seed=5, prompt="a cat " * 200))
    assert job.wait(120)
    if ends == "before the image is saved":
        room()
    database.execute("PRAGMA max_page_count = 100000")
    place.until(lambda: place.history.history.count() and not place.history.history.is_behind)
    place.until(lambda: [image.path for image in job.result().images] != [None])
    place.check(job)


def test_a_locked_history_does_not_hold_up_images(place: Place) -> None:
    other = sqlite3.connect(place.data / "history.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    jobs = [place.queue.submit(GenerationRequest(seed=seed)) for seed in range(3)]
    assert all(job.wait(120) for job in jobs)
    assert time.monotonic() - began < 10
    assert place.history.history.is_behind
    other.execute("ROLLBACK")
    other.close()
    place.until(lambda: place.history.history.count() == 3)
