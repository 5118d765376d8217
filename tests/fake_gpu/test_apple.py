"""Whole jobs in 8 bits on a made-up Apple GPU, which has no 8-bit floats: the images of a GPU that has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.adapters.applying import LoraMode
from modules.memory.formats.codes import as_codes
from modules.memory.formats.format import FORMATS as FORMATS_OF_ALL
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.scripts.axes import AXES
from modules.scripts.library import ScriptLibrary, filled_args
from modules.scripts.running import run_with_scripts
from tests.fake_gpu import fake_gpu
from tests.fake_gpu.jobs import FAMILIES, LORAS, TABLES_BYTES, engine_of, leave, made, pixels, request_of, root_of
from tests.scripts.test_detailer import BUILT_IN
from tests.thorough import is_thorough, pairs, thoroughly

FORMATS = ("fp8_e4m3fn", "fp8_e5m2", "fp8_e4m3fn_row", "int8_row", "int8_convrot", "code4", "gguf_q8_0")
WITH_POSITIONS_IN_FLOAT64 = ("flux1", "flux2", "chroma")
"""Families whose class in diffusers takes float32 for the angles of positions where a device has no float64."""
STREAMED = {"stream_weights": "Layers"}


def images(root: Path, family: str, device_type: str, *ways: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """One image for each way of the settings, by one engine."""
    with fake_gpu(device_type, 16) as card:
        engine = engine_of(root, family)
        found = [pixels(made(engine, family, way, steps=1)) for way in ways]
        leave(engine)
        assert card.memory.allocated < TABLES_BYTES
    return found


@pytest.mark.parametrize(
    ("family", "storage"),
    pairs(FAMILIES, FORMATS, (("sd1", "fp8_e4m3fn"), ("flux1", "fp8_e4m3fn_row"))),
)
def test_an_image_in_8_bits_is_that_of_a_gpu_with_8_bit_floats(root: Path, family: str, storage: str) -> None:
    stored = {"fp8_storage": "Enable", "fp8_format": storage, "compute_mode": "Manual cast"}
    resident, streamed = images(root, family, "mps", stored, {**stored, **STREAMED})
    (expected,) = images(root, family, "xpu", stored)
    assert resident.std() > 1
    assert np.array_equal(resident, streamed)
    assert np.abs(resident.astype(int) - expected).max() <= (2 if family in WITH_POSITIONS_IN_FLOAT64 else 0)


@pytest.mark.parametrize("name", FORMATS)
def test_a_weight_is_encoded_on_the_device_as_on_a_cpu(name: str) -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    expected = FORMATS_OF_ALL.get(name).encode(weight)
    with fake_gpu("mps", 16):
        storage = as_codes(FORMATS_OF_ALL.get(name))
        assert storage is not None
        encoded = storage.encode(weight.to("mps"))
        found = encoded.data.cpu()
    assert encoded.storage == expected.storage
    assert torch.equal(found.view(torch.uint8), expected.data.view(torch.uint8))


def test_fp8_is_switched_on_and_off_between_jobs(root: Path) -> None:
    plain, fp8 = {"fp8_storage": "Disable"}, {"fp8_storage": "Enable", "fp8_format": "fp8_e5m2"}
    first, narrow, again, budget = images(root, "sd1", "mps", plain, fp8, plain, {"weights_budget_gb": 0.0183})
    assert np.array_equal(first, again)
    assert not np.array_equal(first, narrow) and not np.array_equal(first, budget)


@pytest.mark.parametrize(
    ("family", "storage"), [("sd1", "fp8_e4m3fn_row"), thoroughly("z-image", "fp8_e4m3fn"), thoroughly("sd3", "code4")]
)
def test_adapters_act_in_every_mode_and_leave(root: Path, family: str, storage: str) -> None:
    stored = {"fp8_storage": "Enable", "fp8_format": storage}
    prompt = f"a red cat <lora:{family if family in LORAS else 'unet'}:1>"
    seen: dict[str, list[np.ndarray[Any, Any]]] = {}
    for device_type in ("mps", *(("xpu",) if is_thorough() else ())):
        with fake_gpu(device_type, 16):
            engine = engine_of(root, family)
            plain = pixels(made(engine, family, stored, steps=1))
            found = []
            for mode in LoraMode:
                settings = {**stored, "lora_mode": mode.value}
                found.append(pixels(made(engine, family, settings, steps=1, prompt=prompt)))
                assert not np.array_equal(found[-1], plain)
                assert np.array_equal(pixels(made(engine, family, settings, steps=1)), plain)
            seen[device_type] = [plain, *found]
            leave(engine)
    for own, expected in zip(seen["mps"], seen.get("xpu", seen["mps"]), strict=True):
        assert np.array_equal(own, expected)


def test_a_grid_over_formats_shows_the_image_of_each(root: Path, tmp_path: Path) -> None:
    library = ScriptLibrary.load([BUILT_IN], [path.name for path in BUILT_IN.iterdir() if path.name != "xyz-grid"])
    own, shown = {"fp8_storage": "Enable"}, ("fp8_e4m3fn", "int8_row")
    axes: list[Any] = [list(AXES).index("FP8 format"), ", ".join(shown), []]
    args = [*axes, *[list(AXES).index("Nothing"), "", []] * 2, False, True, False, False, False, False, False, 0]
    with fake_gpu("mps", 16):
        engine = engine_of(root, "sd1")
        wanted = request_of("sd1", own, steps=1, script="X/Y/Z plot")
        wanted = replace(wanted, script_args=filled_args(library.find("X/Y/Z plot"), args))
        result = run_with_scripts(wanted, engine, Output(tmp_path), Silent(), library)
        cells = [np.asarray(sample.image.convert("RGB")).astype(np.int64) for sample in result.samples]
        alone = [pixels(made(engine, "sd1", {**own, "fp8_format": name}, steps=1)) for name in shown]
        leave(engine)
    found = [cell for cell in cells if cell.shape == alone[0].shape]
    assert len(found) == 2 and all(np.array_equal(*pair) for pair in zip(found, alone, strict=True))


def test_a_file_in_8_bits_is_read_in_place_and_gives_the_same_image(root: Path, tmp_path: Path) -> None:
    """Also its embeddings, which no format keeps, and a tensor of 64 bits: such a GPU has neither dtype."""
    narrow = {}
    for key, tensor in load_file(root_of(root, "sd1") / "Stable-diffusion" / "sd1.safetensors").items():
        is_weight = tensor.is_floating_point() and tensor.ndim > 1 and not key.startswith("first_stage")
        narrow[key] = tensor.to(torch.float8_e4m3fn) if is_weight else tensor.contiguous()
    narrow = {key: tensor.double() if key.endswith("time_embed.0.bias") else tensor for key, tensor in narrow.items()}
    folder = tmp_path / "narrow"
    folder.mkdir()
    save_file(narrow, folder / "sd1.safetensors")
    seen = []
    for device_type, flags in (("xpu", ()), ("mps", ()), ("mps", ("--lowvram", f"--offload-dir={tmp_path}"))):
        with fake_gpu(device_type, 16) as card:
            engine = engine_of(root, "sd1", *flags, checkpoints=folder)
            seen.append(pixels(made(engine, "sd1", steps=1)))
            leave(engine)
            assert card.memory.allocated < TABLES_BYTES
    assert seen[0].std() > 1 and np.array_equal(seen[1], seen[0]) and np.array_equal(seen[2], seen[0])
