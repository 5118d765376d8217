"""Whole jobs of every family on a made-up GPU: no operation across devices, the same image however the weights come,
dtypes as the precision plan says, and nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modules.models.loading.precision import ComputeMode
from tests.fake_gpu import CardFacts, fake_gpu
from tests.fake_gpu.jobs import FAMILIES, TABLES_BYTES, USUAL_FAMILIES, engine_of, leave, made, pixels, watching_dtypes
from tests.thorough import pairs, thoroughly, usually

Pixels = np.ndarray[Any, np.dtype[np.int64]]
FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
GTX_1660 = CardFacts("NVIDIA GeForce GTX 1660 SUPER", (7, 5), (FP16,))
WAYS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "medvram": (("--medvram",), {}),
    "lowvram": (("--lowvram",), {}),
    "layers": ((), {"stream_weights": "Layers"}),
    "layers, some kept": ((), {"stream_weights": "Layers", "stream_keep_gb": 0.002}),
}
FORMATS = ("fp8_e4m3fn", "fp8_e5m2", "fp8_e4m3fn_row", "int8_row", "int8_convrot", "code4", "gguf_q8_0")


def image(root: Path, family: str, *flags: str, settings: dict[str, Any] | None = None, **changes: Any) -> Pixels:
    """A job with a fresh engine on the card that is there; nothing of it may stay."""
    engine = engine_of(root, family, *flags)
    result = pixels(made(engine, family, settings, **changes))
    leave(engine)
    return result


@pytest.mark.parametrize("family", usually(FAMILIES, USUAL_FAMILIES.__contains__))
def test_an_image_is_the_same_to_the_bit_however_its_weights_come(root: Path, family: str) -> None:
    with fake_gpu("cuda", 8) as card:
        resident = image(root, family)
        assert resident.std() > 1 and card.memory.tensors == 0
        assert np.array_equal(image(root, family, settings={"stream_weights": "Layers"}), resident)
        assert card.memory.tensors == 0 and card.streams.main.count > 100


@pytest.mark.parametrize(("family", "way"), pairs(FAMILIES, WAYS, (("flux1", "lowvram"), ("sd1", "medvram"))))
def test_streaming_takes_less_memory_for_the_same_image(root: Path, family: str, way: str) -> None:
    flags, settings = WAYS[way]
    with fake_gpu("cuda", 8) as card:
        resident = image(root, family)
        whole = card.memory.peak
        card.memory.begin_peak()
        assert np.array_equal(image(root, family, *flags, settings=settings), resident)
        assert card.memory.peak < whole and card.memory.tensors == 0


@pytest.mark.parametrize("family", usually(FAMILIES, lambda name: name == "z-image"))
def test_weights_that_are_streamed_from_disk_give_the_same_image(root: Path, family: str, tmp_path: Path) -> None:
    flags = ("--lowvram", f"--offload-dir={tmp_path}")
    with fake_gpu("cuda", 8) as card:
        assert np.array_equal(image(root, family, *flags), image(root, family))
        assert card.memory.tensors == 0


@pytest.mark.parametrize(
    ("family", "device_type"), pairs(FAMILIES, ("mps", "xpu"), (("z-image", "mps"), ("sd1", "xpu")))
)
def test_other_makers_gpus(root: Path, family: str, device_type: str) -> None:
    """On Apple's there is no fp8: a tensor of it would raise."""
    with fake_gpu(device_type, 16) as card:
        resident = image(root, family, settings={"fp8_storage": "Enable"})
        assert np.array_equal(image(root, family, "--lowvram", settings={"fp8_storage": "Enable"}), resident)
        assert card.memory.allocated < TABLES_BYTES


@pytest.mark.parametrize(
    ("family", "storage"),
    pairs(FAMILIES, FORMATS, (("sd1", "fp8_e4m3fn_row"), ("flux1", "int8_convrot"), ("z-image", "code4"))),
)
def test_each_format_is_decoded_on_the_card(root: Path, family: str, storage: str) -> None:
    settings = {"fp8_storage": "Enable", "fp8_format": storage}
    of_blocks: list[int] = []
    with fake_gpu("cuda", 8) as card:

        def watch(func: Any, args: tuple[Any, ...], result: Any) -> None:
            if func is torch.ops.aten._foreach_copy_.default:
                of_blocks.append(len(args[0]))

        card.watches.append(watch)
        resident = image(root, family, settings=settings)
        card.watches.remove(watch)
        assert resident.std() > 1
        assert not storage.startswith("fp8") or max(of_blocks) > 2, "blocks decode their weights together"
        assert np.array_equal(image(root, family, settings={**settings, "stream_weights": "Layers"}), resident)
        assert card.memory.allocated < TABLES_BYTES


PLANS = [
    thoroughly("cuda", None, "sdxl", {}, FP16, ComputeMode.PLAIN),
    ("cuda", None, "z-image", {}, BF16, ComputeMode.PLAIN),
    ("cuda", GTX_1660, "z-image", {}, FP32, ComputeMode.PLAIN),
    ("cuda", None, "sd1", {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn"}, FP16, ComputeMode.AUTOCAST),
    ("cuda", GTX_1660, "sd1", {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn"}, FP16, ComputeMode.MANUAL),
    thoroughly("mps", None, "sd1", {"fp8_storage": "Enable"}, FP16, ComputeMode.MANUAL),
    ("mps", None, "z-image", {}, BF16, ComputeMode.PLAIN),
    thoroughly("mps", None, "anima", {}, BF16, ComputeMode.PLAIN),
    ("xpu", None, "sd1", {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn"}, FP16, ComputeMode.MANUAL),
    thoroughly("cuda", None, "sd1", {"compute_dtype": "bf16"}, BF16, ComputeMode.PLAIN),
]


@pytest.mark.parametrize(("device_type", "facts", "family", "settings", "dtype", "mode"), PLANS)
def test_products_have_the_dtypes_of_the_plan(
    root: Path,
    device_type: str,
    facts: CardFacts | None,
    family: str,
    settings: dict[str, Any],
    dtype: torch.dtype,
    mode: ComputeMode,
) -> None:
    with fake_gpu(device_type, 8, facts) as card:
        engine = engine_of(root, family)
        made(engine, family, settings, steps=1)
        model = engine._model
        assert model is not None and (model.plan.compute_dtype, model.plan.mode) == (dtype, mode)
        with watching_dtypes(card, engine) as seen:
            made(engine, family, settings, steps=1, prompt="a blue dog")
        assert seen.seen["unet"] == {(dtype, dtype)}
        assert seen.seen["vae"] == {(model.plan.vae_dtype, model.plan.vae_dtype)}
        text = {name: found for name, found in seen.seen.items() if name.startswith("text")}
        assert text and all(found <= {(dtype, dtype), (FP32, FP32)} for found in text.values())
        assert bool(card.autocasts) is (mode is ComputeMode.AUTOCAST)
        del model
        leave(engine)
        assert card.memory.allocated < TABLES_BYTES


@pytest.mark.parametrize(("flag", "settings"), [("--no-half", {}), thoroughly("--precision=full", {})])
def test_32_bits_throughout_where_they_are_asked_for(root: Path, flag: str, settings: dict[str, Any]) -> None:
    with fake_gpu("cuda", 8) as card:
        engine = engine_of(root, "sd1", flag)
        made(engine, "sd1", settings, steps=1)
        with watching_dtypes(card, engine) as seen:
            made(engine, "sd1", settings, steps=1, prompt="a blue dog")
        assert all(found == {(FP32, FP32)} for found in seen.seen.values())
        leave(engine)


def test_a_vae_that_gives_nan_in_16_bits_is_computed_in_32(root: Path) -> None:
    """As SDXL's own does."""
    with fake_gpu("cuda", 8) as card:
        engine = engine_of(root, "sdxl")
        made(engine, "sdxl", steps=1)
        model = engine._model
        assert model is not None

        def overflow(layer: Any, inputs: Any, output: Any) -> Any:
            return output * float("inf") if output.dtype == FP16 else output

        handle = model.vae.decoder.conv_in.register_forward_hook(overflow)
        with watching_dtypes(card, engine) as seen:
            result = made(engine, "sdxl", steps=1)
        handle.remove()
        assert pixels(result).std() > 1
        assert seen.seen["vae"] == {(FP16, FP16), (FP32, FP32)}
        del model
        leave(engine)
        assert card.memory.tensors == 0
