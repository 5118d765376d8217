"""What jobs do besides plain images, on a made-up GPU: hires fix, inpainting, refiner, adapters, detailer, and memory
that runs out at each stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lib_detailer.detectors import Detectors
from modules.adapters.applying import LoraMode
from modules.flags.flags import parse_flags
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine, EngineOptions, ExtraModels
from modules.processing.engine.precision import PrecisionOptions, machine_of
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import HiresRequest
from modules.processing.request.source_images import FromImage, Mask, SourceImage
from modules.processing.request.stages import Stage
from modules.scripts.library import ScriptLibrary, filled_args
from modules.scripts.program import Program
from modules.settings.values import Settings
from tests.fake_gpu import FakeCard, fake_gpu
from tests.fake_gpu.failing import Failing
from tests.fake_gpu.jobs import LORAS, engine_of, leave, made, pixels, request_of
from tests.recordings import CONFIGS, REFERENCE, tiny_adapters
from tests.scripts.test_detailer import BUILT_IN, find_boxes
from tests.scripts.toys import run, small_request
from tests.thorough import is_thorough, thoroughly, usually

CUDA = torch.device("cuda")
STREAMED = {"stream_weights": "Layers"}


@pytest.fixture
def card() -> Iterator[FakeCard]:
    with fake_gpu("cuda", 8) as card:
        yield card


def source(side: int = 64) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8))


def left_half(side: int = 64) -> SourceImage:
    mask = Image.new("L", (side, side))
    mask.paste(255, (0, 0, side // 2, side))
    return SourceImage.of(mask)


def painted(**changes: Any) -> dict[str, Any]:
    start = FromImage(images=(SourceImage.of(source()),), mask=Mask(image=left_half()), denoising_strength=0.8)
    return {"start": start, **changes}


MERGED = ("LoRA", "LoRA of a transformer")
"""Resident weights of 16 bits hold their LoRA and are rounded with it; streamed ones stand beside it."""
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "hires": ("sd1", {"hires": HiresRequest(scale=1.5, steps=1, denoising_strength=0.6)}),
    "hires by images": (
        "sdxl",
        {"hires": HiresRequest(scale=1.5, steps=1, upscaler="Lanczos", denoising_strength=0.6)},
    ),
    "hires of a transformer": ("flux1", {"hires": HiresRequest(scale=1.5, steps=1, denoising_strength=0.6)}),
    "inpainting": ("sd1", painted()),
    "inpainting model": ("sd1-inpainting", painted()),
    "inpainting with a transformer": ("flux1", painted()),
    "refiner": ("sdxl", {"refiner_checkpoint": "sdxl-refiner", "refiner_switch_at": 0.5}),
    "LoRA": ("sd1", {"prompt": "a red cat <lora:unet:0.8>"}),
    "LoRA of a transformer": ("sd3", {"prompt": "a red cat <lora:sd3:0.8>"}),
    "ancestral": ("sd1", {"sampler": "DPM++ 2M SDE", "scheduler": "Karras"}),
    "adaptive": ("sd1", {"sampler": "DPM adaptive"}),
    "noise of the GPU": ("sd1", {"settings_of": {"randn_source": "GPU"}, "sampler": "Euler a"}),
    "tiled VAE": ("sd1", {"settings_of": {"vae_tile_size": 32}}),
    "token merging": ("sd1", {"settings_of": {"token_merging_ratio": 0.5}}),
    "split feed-forward": ("flux1", {"settings_of": {"split_feed_forward": "2"}}),
    "batch": ("sdxl", {"batch_size": 2, "prompt": "a (red:1.3) cat AND a dog"}),
}
USUAL = ("hires", "inpainting model", "inpainting with a transformer", "refiner", "noise of the GPU", "token merging")


@pytest.mark.parametrize("job", usually(JOBS, lambda job: job in USUAL))
def test_a_job_is_the_same_resident_and_streamed(root: Path, job: str, card: FakeCard) -> None:
    family, changes = JOBS[job]
    settings = changes.get("settings_of", {})
    wanted = {name: value for name, value in changes.items() if name != "settings_of"}
    results = []
    for more in ({}, STREAMED):
        engine = engine_of(root, family)
        results.append(pixels(made(engine, family, {**settings, **more}, **wanted)))
        leave(engine)
        assert card.memory.tensors == 0
    assert results[0].std() > 1
    assert np.abs(results[0].astype(int) - results[1]).max() <= (2 if job in MERGED else 0)


@pytest.mark.parametrize(
    ("family", "storage"),
    [
        ("sd1", "fp8_e4m3fn_row"),
        ("z-image", "int8_row"),
        *(thoroughly("sd1", storage) for storage in (None, "int8_row")),
        *(thoroughly("z-image", storage) for storage in (None, "fp8_e4m3fn_row", "code4")),
        *(thoroughly("sd3", storage) for storage in (None, "fp8_e4m3fn_row")),
        *(
            thoroughly("flux2", storage) for storage in (None, "int8_row")
        ),  # see `tests/processing/test_family_loras.py`
    ],
)
def test_adapters_act_in_every_mode_and_leave(root: Path, family: str, storage: str | None, card: FakeCard) -> None:
    stored = {} if storage is None else {"fp8_storage": "Enable", "fp8_format": storage}
    adapter = family if family in LORAS else "unet"
    engine = engine_of(root, family)
    plain = pixels(made(engine, family, stored, steps=1))
    held = card.memory.allocated
    for mode in LoraMode:
        settings = {**stored, "lora_mode": mode.value}
        with_lora = made(engine, family, settings, steps=1, prompt=f"a red cat <lora:{adapter}:1>")
        assert not np.array_equal(pixels(with_lora), plain)
        assert np.array_equal(pixels(made(engine, family, settings, steps=1)), plain)
    assert card.memory.allocated <= held + (1 << 20)
    leave(engine)
    assert card.memory.tensors == 0


# -- what extensions and other models do --------------------------------------------------------------------------


def tiny_engine_of(tmp_path: Path, *flags: str, settings: Settings | None = None) -> Engine:
    catalogue = CheckpointCatalogue([REFERENCE / "models"], HashCache(tmp_path / "hashes.json"))
    parsed = parse_flags(list(flags))
    return Engine(
        catalogue,
        CONFIGS,
        lambda: machine_of(parsed, tmp_path / "off"),
        models=ExtraModels(adapters=tiny_adapters()),
        options=EngineOptions(lambda: PrecisionOptions.of(settings or Settings())),
    )


def test_the_detailer_paints_what_is_found(tmp_path: Path, card: FakeCard) -> None:
    """Also where memory runs out in it: at its first request, towards its end, and in its middle."""
    engine = tiny_engine_of(tmp_path)
    detectors = Detectors(engine.faces.find, tmp_path)
    found_at, fails_after = 0, 0

    def find(*args: Any, **options: Any) -> Any:
        nonlocal found_at
        boxes, found_at = find_boxes(*args, **options), card.memory.requests
        if fails_after:
            card.memory.fail_at.append(found_at + fails_after)
        return boxes

    program = Program(detectors=lambda: list(detectors.names), detector=detectors.check, detect=find)
    library = ScriptLibrary.load([BUILT_IN], [path.name for path in BUILT_IN.iterdir() if path.name != "detailer"])
    for script in library.scripts:
        script.program = program
    script = library.find_alwayson("adetailer", False)
    plain = pixels(run(small_request(steps=1), engine, tmp_path, library))
    args = filled_args(script, [True, False, {"ad_model": "face_mtcnn", "ad_denoising_strength": 1.0}])
    request = small_request(steps=1, alwayson_args={script.title(): args})
    first = run(request, engine, tmp_path, library)
    detailed, requests = pixels(first), card.memory.requests - found_at
    assert not np.array_equal(detailed, plain) and first.notices == () and requests > 100
    positions = (1, requests * 9 // 10, *((requests // 2,) if is_thorough() else ()))
    for failures, position in enumerate(positions, start=1):
        fails_after = position
        assert np.array_equal(pixels(run(request, engine, tmp_path, library)), detailed)
        assert card.memory.failures == failures
    leave(engine)
    assert card.memory.tensors == 0


# -- memory that runs out ------------------------------------------------------------------------------------------


HIRES = {"hires": HiresRequest(scale=1.5, steps=1, denoising_strength=0.6), "prompt": "a red cat <lora:unet:1>"}
RUNS_OUT: list[Any] = [
    ("sd1", {}, painted(), (Stage.LOAD, Stage.ENCODE_TEXT, Stage.ENCODE_IMAGE, Stage.SAMPLE, Stage.DECODE)),
    ("sd1", {}, HIRES, (Stage.ADAPTERS, Stage.ENLARGE, Stage.SAMPLE_HIRES, Stage.SAVE)),
    thoroughly("sd1", STREAMED, painted(), (Stage.LOAD, Stage.ENCODE_IMAGE, Stage.SAMPLE, Stage.DECODE)),
    thoroughly("z-image", {}, {}, (Stage.LOAD, Stage.ENCODE_TEXT, Stage.SAMPLE, Stage.DECODE)),
]
FRESH = (Stage.LOAD, Stage.ENCODE_TEXT, Stage.ADAPTERS)
"""Of which the next job would need nothing."""


@pytest.mark.parametrize(("family", "settings", "changes", "stages"), RUNS_OUT)
def test_memory_that_runs_out_once_costs_nothing_but_time(
    root: Path,
    family: str,
    settings: dict[str, Any],
    changes: dict[str, Any],
    stages: tuple[Stage, ...],
    card: FakeCard,
) -> None:
    """Once at each stage."""
    wanted = request_of(family, settings, steps=1, **changes)
    engine = engine_of(root, family)
    image = pixels(generate(wanted, engine, Output(Path()), Silent()))
    assert image.std() > 1
    for number, stage in enumerate(stages, start=1):
        if stage in FRESH:
            leave(engine)
            assert card.memory.tensors == 0
            engine = engine_of(root, family)
        failing = Failing(card, stage)
        assert np.array_equal(pixels(generate(wanted, engine, Output(Path()), failing)), image), stage
        assert card.memory.failures == number and failing.is_done, stage
    assert card.memory.emptied > 0
    leave(engine)
    assert card.memory.tensors == 0


def test_a_model_that_does_not_fit_is_streamed_by_itself(root: Path) -> None:
    """The card has room for a part of the weights only."""
    with fake_gpu("cuda", 8) as card:
        engine = engine_of(root, "sdxl")
        plain = pixels(made(engine, "sdxl"))
        whole = card.memory.peak
        leave(engine)
    room = (whole * 0.7 + (400 << 20)) / 2**30
    with fake_gpu("cuda", room) as card:
        engine = engine_of(root, "sdxl")
        assert np.array_equal(pixels(made(engine, "sdxl")), plain)
        assert card.memory.peak < whole * 0.7
        leave(engine)
        assert card.memory.tensors == 0
