"""Hires fix and img2img with an upscaler file, from the request to the image, on the tiny model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.errors import CheckpointError, MemoryShortageError, UnknownNameError
from modules.images.infotext import parse_infotext
from modules.processing.engine.engine import Engine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.source_images import FromImage, Mask, SourceImage
from modules.processing.request.stages import Part, Stage, stage_text
from modules.settings.values import Settings
from modules.upscalers import tiles
from modules.upscalers.catalogue import UpscalerCatalogue
from modules.upscalers.upscalers import Upscalers
from tests.recordings import cpu_machine, tiny_engine
from tests.upscalers.models import save_esrgan


class Listening(Silent):
    def __init__(self) -> None:
        self.shown: list[str] = []

    def stage(self, stage: Stage, parts: Sequence[Part] = ()) -> None:
        self.shown.append(stage_text(stage, parts))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    save_esrgan(tmp_path / "ESRGAN" / "4x-Tiny.pth")
    (tmp_path / "ESRGAN" / "broken.pth").write_bytes(b"broken")
    engine = tiny_engine(tmp_path)
    catalogue = UpscalerCatalogue({"ESRGAN": tmp_path / "ESRGAN"})
    engine.upscalers = Upscalers(catalogue, lambda part: cpu_machine().device)
    return engine


def request_with(upscaler: str) -> GenerationRequest:
    changes = {"samples_save": False, "sd_model_checkpoint": "tiny-sd1.safetensors", "ESRGAN_tile": 48}
    return GenerationRequest(
        prompt="a red cat",
        width=64,
        height=64,
        steps=2,
        seed=1,
        subseed=1,
        hires=HiresRequest(upscaler=upscaler, scale=1.5, denoising_strength=0.5),
        settings=Settings().with_changes(changes),
    )


def test_the_image_is_enlarged_by_the_file_and_says_so(engine: Engine, tmp_path: Path) -> None:
    events = Listening()
    result = generate(request_with("4x-Tiny"), engine, Output(tmp_path), events)
    (image,) = result.samples
    assert image.image.size == (96, 96)
    assert "Hires upscaler: 4x-Tiny" in image.infotext
    assert "enlarging the image, tile 4 of 4" in events.shown and "enlarge" in result.timings_s
    lanczos = generate(request_with("Lanczos"), engine, Output(tmp_path), Silent())
    assert lanczos.samples[0].image.tobytes() != image.image.tobytes()


@pytest.mark.parametrize(
    ("times", "recovered"), [(1, None), (2, "tiled upscaler"), (3, None)], ids=["freed", "tiles", "nothing helps"]
)
def test_memory_that_runs_out_in_the_upscaler_means_smaller_tiles(
    times: int, recovered: str | None, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sides, left = tiles._run, [], times

    def failing(model: Any, square: Any, device: Any) -> Any:
        nonlocal left
        sides.append(max(square.shape[:2]))
        if left:
            left -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(model, square, device)

    monkeypatch.setattr("modules.processing.engine.recovery.UPSCALER_TILES_PX", (32,))
    monkeypatch.setattr(tiles, "_run", failing)
    if times == 3:
        with pytest.raises(MemoryShortageError, match=r"enlarge: CUDA out of memory.*in tiles of 32 pixels"):
            generate(request_with("4x-Tiny"), engine, Output(tmp_path), Silent())
        return
    result = generate(request_with("4x-Tiny"), engine, Output(tmp_path), Silent())
    assert result.samples[0].image.size == (96, 96)
    assert parse_infotext(result.samples[0].infotext).get("Memory recovery") == recovered
    assert any("while enlarging the image" in notice for notice in result.notices)
    assert sides[: times + 1] == [48] * (times if recovered else times + 1) + [32] * (recovered is not None)
    sides.clear()
    generate(request_with("4x-Tiny"), engine, Output(tmp_path), Silent())
    assert sides == [48] * 4  # nothing of it is left for the next job


def test_a_broken_file_and_an_unknown_name_are_said(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"broken\.pth cannot be read"):
        generate(request_with("broken"), engine, Output(tmp_path), Silent())
    with pytest.raises(UnknownNameError, match=r"hires upscaler 'gone'.*4x-Tiny"):
        generate(request_with("gone"), engine, Output(tmp_path), Silent())


def started(image: Image.Image, upscaler: str | None, mask: Mask | None = None) -> GenerationRequest:
    start = FromImage(images=(SourceImage.of(image),), denoising_strength=0.0, mask=mask)
    request = request_with("Latent")
    settings = request.settings.with_changes({"upscaler_for_img2img": upscaler})
    return replace(request, hires=None, start=start, settings=settings)


def test_an_image_to_start_from_is_enlarged_by_the_upscaler_of_the_setting(engine: Engine, tmp_path: Path) -> None:
    small = Image.effect_noise((32, 32), 90).convert("RGB")
    large = small.resize((128, 128))
    events = Listening()
    by_file, by_lanczos, by_none, by_empty = (
        generate(started(small, name), engine, Output(tmp_path), events).samples[0].image
        for name in ("4x-Tiny", "Lanczos", "None", None)
    )
    assert "enlarging the image, tile 1 of 1" in events.shown
    assert by_file.tobytes() != by_lanczos.tobytes() == by_none.tobytes() == by_empty.tobytes()
    events.shown.clear()
    shrunk = [generate(started(large, name), engine, Output(tmp_path), events) for name in ("4x-Tiny", None)]
    assert shrunk[0].samples[0].image.tobytes() == shrunk[1].samples[0].image.tobytes()
    assert not any("enlarging" in shown for shown in events.shown)


def test_a_masked_area_is_enlarged_by_it_and_its_mask_is_not(engine: Engine, tmp_path: Path) -> None:
    image, area = Image.effect_noise((64, 64), 90).convert("RGB"), Image.new("L", (64, 64))
    area.paste(255, (16, 16, 40, 40))
    mask = Mask(image=SourceImage.of(area), blur_x=0, blur_y=0, full_resolution=True, padding=0)
    events = Listening()
    by_file, by_lanczos = (
        np.asarray(generate(started(image, name, mask), engine, Output(tmp_path), events).samples[0].image)
        for name in ("4x-Tiny", "Lanczos")
    )
    kept = np.asarray(area) == 0
    assert (by_file[kept] == np.asarray(image)[kept]).all()
    assert (by_file[~kept] != by_lanczos[~kept]).any()
    assert events.shown.count("enlarging the image, tile 1 of 1") == 1
