"""A worker process with a real engine and the tiny model: what it makes is what the server's process makes."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from compat.foreign import Foreign
from lib_training.config import config_of
from lib_training.work import TrainingWork
from lib_workbench.precision_work import PrecisionWork, StorageOptions
from modules.assembly import build_services
from modules.flags.flags import Flags
from modules.jobs.job import JobStatus
from modules.processing.engine.status import EngineState
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.services import Services
from tests.recordings import TINY


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("data")
    services = build_services(
        Flags(data_dir=str(folder), ckpt=str(TINY), use_cpu=("all",), workers=1), foreign=Foreign()
    )
    services.workers.start()
    services.dispatcher.start()
    services.models.request_load(None)
    yield services
    services.dispatcher.close()
    services.history.close()


def until(condition: Callable[[], object], timeout_s: float = 120.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def request_of(services: Services, **more: object) -> GenerationRequest:
    settings = services.settings.current.with_changes({"show_progress_type": "Full"})
    return GenerationRequest(prompt="a", seed=3, subseed=0, steps=3, width=64, height=64, settings=settings, **more)  # type: ignore[arg-type]


def test_a_worker_makes_the_images_that_the_server_would_make(services: Services, tmp_path: Path) -> None:
    from modules.processing.pipeline.generate import generate

    request = request_of(services, batch_count=2)
    job = services.queue.submit(request, preview_every=1)
    assert job.wait(90) and job.status is JobStatus.DONE, job.error
    result = job.result()
    expected = generate(replace(request, checkpoint=TINY.name), services.engine, Output(tmp_path), Silent())
    services.engine.unload()
    assert [image.image.tobytes() for image in result.images] == [image.image.tobytes() for image in expected.images]
    assert result.samples[0].infotext == expected.samples[0].infotext
    assert result.memory is not None and result.timings_s and job.progress().preview_id > 2
    assert all(image.path and image.path.is_file() for image in result.images)


def test_the_page_sees_the_workers_model_and_not_the_servers(services: Services) -> None:
    until(lambda: services.models.status.state is EngineState.READY)
    model = services.models.status.model
    assert model is not None and model.title.startswith(TINY.name)
    assert services.engine.status.state is EngineState.EMPTY
    assert services.settings.current.stable_diffusion.sd_model_checkpoint.startswith(TINY.name)
    memory = services.models.memory()
    assert memory["ram"]["used"] != 0
    services.settings.update({"fp8_storage": "Enable"})
    until(lambda: (found := services.models.status.model) is not None and "fp8" in found.storage)
    services.settings.update({"fp8_storage": "Disable"})
    services.models.unload()
    until(lambda: services.models.status.state is EngineState.EMPTY)


def test_tasks_of_extensions_are_done_by_the_worker(services: Services, tmp_path: Path) -> None:
    report = PrecisionWork(services).report(StorageOptions())
    assert report.wait(120) and report.status is JobStatus.DONE, report.error
    assert report.result()["json"] in PrecisionWork(services).reports.names()
    for index in range(2):
        Image.new("RGB", (64, 64), (index * 90, 40, 120)).save(tmp_path / f"{index}.png")
        (tmp_path / f"{index}.txt").write_text("toy", encoding="utf-8")
    sections = {
        "model": {"checkpoint": TINY.name, "device": "cpu", "storage": "fp32"},
        "adapter": {"rank": 2},
        "data": {"folders": [str(tmp_path)], "resolution": 64, "validation": 0},
        "training": {"steps": 2},
        "output": {"name": "by a worker", "sample_every": 0},
    }
    training = TrainingWork(services).start(config_of(sections))
    assert training.wait(240) and training.status is JobStatus.DONE, training.error
    assert training.result()["files"] == ["by a worker.safetensors"]
    assert services.engine.status.state is EngineState.EMPTY
