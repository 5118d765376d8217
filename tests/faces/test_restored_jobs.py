"""Face restoration of the images of a job: what it changes, records and saves, and how a job asks for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.api.generation.requests import request_from
from modules.api.schema.schemas import Txt2ImgBody
from modules.errors import CheckpointError
from modules.faces.restorers import FaceRestorers
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.processing.engine.engine import Engine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import Result
from modules.services import Services
from modules.settings.values import Settings
from tests.fakes import fake_services
from tests.recordings import tiny_engine

FACES = {"face_restoration": True, "face_restoration_model": "CodeFormer", "code_former_weight": 0.25}


class Inverted(FaceRestorers):
    """Turns a whole image into its negative."""

    calls: list[tuple[str, float, bool]]

    def check(self, name: str) -> Any:
        return name

    def restore(self, image: Image.Image, name: str, weight: float = 0.5, *args: Any, **more: Any) -> Image.Image:
        self.calls.append((name, weight, more["unload"]))
        return image.point(lambda value: 255 - value)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = tiny_engine(tmp_path)
    engine.faces = Inverted({}, lambda part: engine.machine.device)
    engine.faces.calls = []
    yield engine
    engine.unload()


def made(engine: Engine, folder: Path, **settings: Any) -> Result:
    base = Settings().changed(sd_model_checkpoint="tiny-sd1.safetensors", grid_save=False, save_to_dirs=False)
    request = GenerationRequest(
        prompt="a cat", width=64, height=64, steps=2, seed=5, subseed=0, settings=base.with_changes(settings)
    )
    return generate(request, engine, Output(folder), Silent())


def test_faces_are_restored_recorded_and_the_image_before_is_saved(engine: Engine, tmp_path: Path) -> None:
    plain = made(engine, tmp_path)
    assert isinstance(engine.faces, Inverted) and engine.faces.calls == []
    restored = made(engine, tmp_path, **FACES, save_images_before_face_restoration=True)
    assert engine.faces.calls == [("CodeFormer", 0.25, False)]
    first, second = (np.asarray(result.images[0].image, int) for result in (plain, restored))
    assert np.array_equal(first, 255 - second)
    assert "Face restoration: CodeFormer, Size" in restored.images[0].infotext
    assert "faces" in restored.timings_s and "faces" not in plain.timings_s
    (before,) = tmp_path.rglob("*-before-face-restoration.png")
    assert np.array_equal(np.asarray(Image.open(before).convert("RGB")), first)


def test_memory_that_runs_out_once_in_it_costs_a_notice(engine: Engine, tmp_path: Path) -> None:
    whole = np.asarray(made(engine, tmp_path, **FACES).images[0].image)

    class Short(Inverted):
        def restore(self, image: Image.Image, *args: Any, **more: Any) -> Image.Image:
            restored = super().restore(image, *args, **more)
            if len(self.calls) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return restored

    engine.faces = Short({}, lambda part: engine.machine.device)
    engine.faces.calls = []
    result = made(engine, tmp_path, **FACES)
    assert len(engine.faces.calls) == 2 and np.array_equal(np.asarray(result.images[0].image), whole)
    assert any("while restoring faces" in notice for notice in result.notices)


def test_an_infotext_asks_for_it_again(engine: Engine, tmp_path: Path) -> None:
    found = parse_infotext(made(engine, tmp_path, **FACES).images[0].infotext)
    assert override_settings_from(found, Settings()) == {"face_restoration": True}
    other = override_settings_from({"Face restoration": "GFPGAN"}, Settings())
    assert other == {"face_restoration": True, "face_restoration_model": "GFPGAN"}
    assert override_settings_from({"Face restoration": "Magic"}, Settings()) == {}


def test_without_a_file_the_job_says_what_goes_where_before_it_computes(engine: Engine, tmp_path: Path) -> None:
    engine.faces = FaceRestorers({"GFPGAN": tmp_path / "GFPGAN"}, lambda part: engine.machine.device)
    with pytest.raises(CheckpointError, match=r"GFPGAN has no file: put one, such as GFPGANv1\.4\.pth, into"):
        made(engine, tmp_path, face_restoration=True, face_restoration_model="GFPGAN")


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    services = fake_services(tmp_path, start=False)
    yield services
    services.dispatcher.close()


def test_the_api_goes_before_the_setting(services: Services) -> None:
    def wanted(**fields: Any) -> bool:
        return request_from(Txt2ImgBody(**fields), services).settings.face_restoration.face_restoration

    assert not wanted() and wanted(restore_faces=True)
    services.settings.update({"face_restoration": True})
    assert wanted() and not wanted(restore_faces=False)
