"""From settings, flags and device to the plan, and from an image's infotext back to it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from modules.flags.flags import Flags
from modules.images.infotext import format_infotext, parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.models.loading.precision import ComputeMode
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import Machine, PrecisionOptions, machine_of, resolve
from modules.processing.pipeline.generate import generate
from modules.processing.record.describe import precision_fields
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.settings.values import Settings
from tests.recordings import tiny_engine
from tests.scripts.toys import small_request

CUDA = Machine(torch.device("cuda"), torch.float16, torch.float16, fp8_matmul=True)
MACHINES = {
    "cuda": CUDA,
    "gtx 16xx": replace(CUDA, no_autocast=True, fp8_matmul=False),
    "cuda, precision half": replace(CUDA, precision="half"),
    "cuda, precision full": Machine(torch.device("cuda"), torch.float32, torch.float32, precision="full"),
    "xpu": Machine(torch.device("xpu"), torch.float16, torch.float16),
    "mps": Machine(torch.device("mps"), torch.float16, torch.float16, float8=False),
    "cpu": Machine(torch.device("cpu"), torch.bfloat16, torch.float32),
}
FORMATS = ("fp8_e4m3fn_row", "fp8_e4m3fn", "fp8_e5m2", "int8_row", "int8_convrot")
MODES = ("Automatic", "Manual cast", "Autocast", "FP8 matmul", "int8 matmul")


@pytest.fixture
def all_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that are not here compute in everything."""
    monkeypatch.setattr("modules.processing.engine.precision.works", lambda device, dtype: True)


@pytest.mark.parametrize(
    ("machine", "storage", "mode"),
    [
        ("cuda", "fp8_e4m3fn", ComputeMode.AUTOCAST),
        ("cuda", "fp8_e4m3fn_row", ComputeMode.MANUAL),
        ("gtx 16xx", "fp8_e4m3fn", ComputeMode.MANUAL),  # autocast gives NaN there
        ("gtx 16xx", "fp8_e4m3fn_row", ComputeMode.MANUAL),
        ("cuda, precision half", "fp8_e4m3fn", ComputeMode.MANUAL),  # where the reference UI fails
        ("cuda, precision half", "fp8_e5m2", ComputeMode.MANUAL),
        ("cuda, precision full", "fp8_e4m3fn", ComputeMode.MANUAL),
        ("xpu", "fp8_e4m3fn", ComputeMode.MANUAL),
        ("cpu", "fp8_e4m3fn", ComputeMode.MANUAL),
    ],
)
def test_automatic_computes_as_the_machine_can(machine: str, storage: str, mode: ComputeMode) -> None:
    plan = resolve(PrecisionOptions(fp8_storage="Enable", fp8_format=storage), MACHINES[machine], None)
    assert plan.mode is mode
    assert plan.unet_storage == plan.text_storage == storage
    assert plan.compute_dtype == MACHINES[machine].dtype


@pytest.mark.parametrize("storage", FORMATS)
def test_apple_gpus_store_what_others_do_and_say_the_same_of_an_image(storage: str) -> None:
    options = PrecisionOptions(fp8_storage="Enable", fp8_format=storage)
    plan, other = (resolve(options, MACHINES[name], None) for name in ("mps", "xpu"))
    assert plan.is_low_precision and plan.unet_storage == plan.text_storage == storage
    assert plan.mode is ComputeMode.MANUAL and plan.notes == () and not plan.float8
    assert precision_fields(plan) == precision_fields(other)


def test_a_budget_of_weights_holds_on_apple_gpus() -> None:
    plan = resolve(PrecisionOptions(budget_bytes=2_000_000_000), MACHINES["mps"], None)
    assert plan.budget_bytes == 2_000_000_000 and plan.unet_storage is not None


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.usefixtures("all_dtypes")
def test_a_pasted_image_restores_the_plan(machine: str) -> None:
    """Whatever was set when the image was made, and whatever is set now."""
    now = Settings().changed(
        fp8_storage="Enable for SDXL",
        fp8_format="int8_row",
        fp8_skip="^conv_in$",
        fp8_text_encoder=False,
        compute_dtype="bf16",
        compute_mode="Autocast",
    )
    for storage, mode, dtype, weight in product(FORMATS, MODES, ("Automatic", "fp16", "fp32"), ("Enable", "Disable")):
        then = Settings().changed(
            fp8_storage=weight,
            fp8_format=storage,
            compute_mode=mode,
            compute_dtype=dtype,
            fp8_skip="attn1; ^conv_out$" if weight == "Enable" else "",
            fp8_text_encoder=storage != "int8_row" or weight == "Disable",
            cache_fp16_weight=weight == "Enable",
        )
        made = resolve(PrecisionOptions.of(then), MACHINES[machine], None)
        text = format_infotext("a cat", "", {"Steps": 1, "Sampler": "Euler", "Seed": 2, **precision_fields(made)})
        for current in (now, Settings()):
            pasted = current.with_changes(override_settings_from(parse_infotext(text), current))
            again = resolve(PrecisionOptions.of(pasted), MACHINES[machine], None)
            assert again.fingerprint == made.fingerprint, (storage, mode, dtype, weight, text)
            assert again.load_key == made.load_key


@pytest.mark.usefixtures("all_dtypes")
def test_an_image_cast_by_hand_on_cuda_is_not_pasted_as_autocast() -> None:
    options = PrecisionOptions(fp8_storage="Enable", fp8_format="fp8_e4m3fn", compute_mode="Manual cast")
    fields = precision_fields(resolve(options, CUDA, None))
    assert fields["Compute mode"] == "Manual cast"
    parsed = parse_infotext(format_infotext("a", "", {"Steps": 1, "Sampler": "Euler", "Seed": 2, **fields}))
    settings = Settings().with_changes(override_settings_from(parsed, Settings()))
    assert resolve(PrecisionOptions.of(settings), CUDA, None).mode is ComputeMode.MANUAL


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = tiny_engine(tmp_path)
    yield engine
    engine.unload()


@pytest.mark.parametrize("precision", ["half", "full", "autocast"])
@pytest.mark.parametrize("storage", ["fp8_e4m3fn", "fp8_e4m3fn_row"])
def test_images_in_8_bits_under_every_word_of_precision(
    precision: str, storage: str, engine: Engine, tmp_path: Path
) -> None:
    machine = machine_of(Flags(use_cpu=("all",), precision=precision))
    engine._find_machine = lambda: machine
    settings = {"fp8_storage": "Enable", "fp8_format": storage}
    result = generate(small_request(steps=2, settings=settings), engine, Output(tmp_path), Silent())
    assert f"FP8 format: {storage}" in result.samples[0].infotext
    model = engine._model
    assert model is not None
    assert model.plan.compute_dtype == machine.dtype
    extrema = result.samples[0].image.convert("L").getextrema()
    assert extrema[0] != extrema[1]  # an image, not the black of NaN
