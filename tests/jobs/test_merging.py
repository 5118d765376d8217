"""The merger that page and command line share."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from lib_workbench.merge_work import Merger, merge_starters, start_merge
from lib_workbench.merging.request import MergeOptions
from modules.errors import UnknownNameError
from modules.jobs.job import JobStatus
from modules.jobs.store import JobStore
from modules.models.autoencoders.files import VaeCatalogue
from modules.models.files.tensor_file import TensorFile
from tests.jobs.test_tasks import NoImages
from tests.models.merging.toys import Toys, toy
from tests.queues import JobQueue
from tests.recordings import CONFIGS

OPTIONS = MergeOptions(primary="a", secondary="b", name="merged")


@pytest.fixture
def toys(tmp_path: Path) -> Toys:
    toys = Toys(tmp_path)
    toys.add_three()
    return toys


def merger_of(toys: Toys, hashing: bool = True, lock: threading.RLock | None = None) -> Merger:
    lock = lock or threading.RLock()
    return Merger(toys.catalogue(), VaeCatalogue(), toys.folder, CONFIGS, hashing, lock)


def test_the_catalogue_knows_the_result_and_the_models_hashes(toys: Toys) -> None:
    merger = merger_of(toys)
    result = merger.run(merger.resolve(OPTIONS), lambda done, total, phase: None)
    assert merger.catalogue.get("merged").path == result.path
    assert merger.catalogue.get("a").sha256


def test_without_hashing_the_recipe_names_no_hashes(toys: Toys) -> None:
    merger = merger_of(toys, hashing=False)
    with TensorFile(merger.run(merger.resolve(OPTIONS), lambda done, total, phase: None).path) as file:
        assert json.loads(file.metadata["sd_merge_recipe"])["primary_model_hash"] is None
        assert json.loads(file.metadata["sd_merge_models"]) == {}
    assert merger.catalogue.get("a").sha256 is None


def test_a_merge_does_not_wait_for_an_image(toys: Toys) -> None:
    lock = threading.RLock()
    merger = merger_of(toys, lock=lock)
    merger.metadata_of([])  # everything is imported then, as it is when an image is being made
    queue = JobQueue(NoImages(), JobStore(None))
    queue.start()
    with lock:
        task = start_merge(queue, merger, OPTIONS)
        assert task.wait(120)
    assert task.result()["tensors"] == 6
    queue.close()


def test_a_merge_that_never_ran_goes_on_after_a_restart(toys: Toys, tmp_path: Path) -> None:
    merger = merger_of(toys)
    first = JobQueue(NoImages(), JobStore(tmp_path / "jobs.sqlite"))
    start_merge(first, merger, OPTIONS, ["^conv"], text_encoders=False)
    first.close()  # it never ran
    queue = JobQueue(NoImages(), JobStore(tmp_path / "jobs.sqlite"))
    queue.repeats.add(merge_starters(merger))
    assert queue.restore() == 1
    (task,) = queue.known.tasks()
    assert (task.type, task.title) == ("merge", "Merging into merged.safetensors")
    assert task.recorded_request()["skip"] == ["^conv"]
    queue.start()
    assert task.wait(120) and task.status is JobStatus.DONE
    queue.close()


def test_the_metadata_of_models_is_joined(toys: Toys) -> None:
    toys.add("x.safetensors", toy(1), {"author": "X", "format": "pt"})
    toys.add("y.safetensors", toy(1), {"author": "Y", "licence": "free"})
    assert merger_of(toys).metadata_of(["x", "", "y", "a"]) == {"author": "X", "licence": "free"}
    with pytest.raises(UnknownNameError, match="nothing"):
        merger_of(toys).metadata_of(["nothing"])
