"""The peak of each stage, as the recorder of memory sees it on a made-up GPU, against the estimate: models in full
size, or in full width with few of their blocks, of which nothing is computed but shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.flags.flags import parse_flags
from modules.memory.streaming.source import RamSource, WatchedFile
from modules.models.files import tensor_file
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.precision import machine_of
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import FromNoise, SourceImage
from modules.processing.request.stages import Stage
from modules.settings.values import Settings
from tests.fake_gpu import fake_gpu
from tests.fake_gpu.jobs import TABLES_BYTES, leave
from tests.models.full_size import write_full
from tests.recordings import CONFIGS
from tests.thorough import thoroughly

TOLERANCE = 0.05
STREAMED = 1.15
"""The largest groups of weights and the largest activations, which are added up, need not meet in one layer."""
SMALL_BYTES = 32 << 20
"""What may be left out besides: prompts that are kept, the image."""
FP8 = {"fp8_storage": "Enable"}
BLOCKS = {"stream_weights": "Blocks"}
FEW, NOTHING = 3, FromNoise()
HOLDS = "tests/processing/test_qwen_image_edit.py::test_the_estimate_of_the_text_stage_includes_the_tower"


@pytest.fixture
def no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are not read: only where they would lie is of interest."""
    monkeypatch.setattr(tensor_file, "read_exactly", lambda file, path, target, name: None)
    monkeypatch.setattr(RamSource, "read_into", lambda source, target: None)
    monkeypatch.setattr(WatchedFile, "read_into", lambda file, begin, runs, target: None)


@pytest.mark.usefixtures("no_bytes")
@pytest.mark.parametrize(
    ("name", "blocks", "memory_gb", "side_px", "cfg_scale", "settings"),
    [
        ("sd1", None, 4, 512, 7.0, {}),
        ("z-image", FEW, 6, 1024, 1.0, FP8),
        ("flux1-dev", FEW, 8, 1024, 1.0, BLOCKS),
        thoroughly("anima", FEW, 4, 1024, 4.0, {}),
        thoroughly("sdxl", None, 12, 512, 7.0, {}),  # the same UNet and VAE as SD1's, three times as long
        thoroughly("sdxl", None, 4, 1024, 7.0, BLOCKS),
        thoroughly("sdxl", None, 6, 1024, 7.0, FP8),
        thoroughly("sdxl", None, 12, 1024, 7.0, {}),
        thoroughly("flux1-dev", FEW, 12, 1024, 4.0, FP8),
        thoroughly("flux2-klein-4b", FEW, 12, 1024, 1.0, BLOCKS),
        thoroughly("chroma1", FEW, 12, 1024, 1.0, {}),
        thoroughly("sd35-large", FEW, 12, 1024, 5.0, {}),
    ],
)
def test_each_stage_takes_what_is_estimated(
    name: str,
    blocks: int | None,
    memory_gb: float,
    side_px: int,
    cfg_scale: float,
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    write_full(tmp_path, name, blocks)
    compare(tmp_path, memory_gb, side_px, cfg_scale, settings)


@pytest.mark.usefixtures("no_bytes")
@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        thoroughly("Qwen-Image-Edit-2511", FP8, 1, held_by=HOLDS),
        thoroughly("Qwen-Image-Edit-2511", BLOCKS, 2, held_by=HOLDS),
        thoroughly("Qwen-Image-Edit", {}, 1, held_by=HOLDS),
    ],
)
def test_reading_a_prompt_takes_what_is_estimated_where_images_are_looked_at(
    name: str, settings: dict[str, Any], count: int, tmp_path: Path
) -> None:
    write_full(tmp_path, "qwen-image", FEW)
    checkpoint = tmp_path / "Stable-diffusion" / "qwen-image.safetensors"
    checkpoint.rename(checkpoint.with_stem(name))
    images = tuple(SourceImage.of(Image.new("RGB", (300, 200 + number))) for number in range(count))
    compare(tmp_path, 12, 512, 1.0, settings, FromNoise(images), [Stage.ENCODE_TEXT])


def compare(
    tmp_path: Path,
    memory_gb: float,
    side_px: int,
    cfg_scale: float,
    settings: dict[str, Any],
    start: FromNoise = NOTHING,
    stages: Iterable[Stage] | None = None,
) -> None:
    """Make images with the model in a folder, and compare the peak of each stage, or of these, with the estimate."""
    catalogue = CheckpointCatalogue([tmp_path / "Stable-diffusion"], HashCache(tmp_path / "hashes.json"))
    modules = ModuleCatalogue([tmp_path / "text_encoder", tmp_path / "VAE"])
    fields: dict[str, Any] = {
        **{"prompt": "a red cat", "seed": 1, "subseed": 0, "steps": 1, "sampler": "Euler", "save_images": False},
        **{"width": side_px, "height": side_px, "cfg_scale": cfg_scale},
    }
    chosen = Settings().with_changes({**settings, "live_previews_enable": False})
    request = GenerationRequest(**fields, settings=chosen, start=start)
    with fake_gpu("cuda", memory_gb, has_values=False) as card:
        engine = Engine(
            catalogue,
            CONFIGS,
            lambda: machine_of(parse_flags([]), tmp_path / "off"),
            models=ExtraModels(modules=modules),
        )
        estimate = MemoryEstimator(engine, CONFIGS).plan(request)
        assert estimate.available_bytes is not None and estimate.needs_bytes <= estimate.available_bytes
        prompts = ("a blue dog", "a red cat") if settings == BLOCKS else ("a red cat",)
        results = [generate(replace(request, prompt=one), engine, Output(tmp_path), Silent()) for one in prompts]
        records = [result.memory for result in results if result.memory is not None]
        assert card.memory.failures == 0 and records
        # Of two, only the second knows what it needs ahead of its use, and begins with what the first left.
        found = {
            need.stage: (need.needs_bytes, [record.peak(need.stage).allocated or 0 for record in records])
            for need in estimate.stages
        }
        assert {"load", "text", "denoise", "decode"} <= set(found)
        for stage in found if stages is None else stages:
            needs, peaks = found[stage]
            most = max(peaks) * (STREAMED if settings == BLOCKS and stage == "denoise" else 1)
            room = max(TOLERANCE * max(peaks), SMALL_BYTES)
            least = max(peaks) if stage == "denoise" else peaks[0]
            assert least - room <= needs <= most + room, f"{stage} of {found}"
        leave(engine)
        assert card.memory.allocated < TABLES_BYTES
