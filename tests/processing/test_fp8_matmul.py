"""The compute mode FP8 matmul from settings to images, and what it says where there is nothing to multiply with."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lib_workbench.comparison.compare import psnr_db
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.memory.layer import stored_state
from modules.memory.matmul import fp8_product
from modules.models.loading.precision import ComputeMode
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import Machine, PrecisionOptions, resolve
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.pasting import pasted_values
from modules.processing.request.result import Result
from modules.settings.values import Settings
from tests.recordings import cpu_machine, tiny_engine
from tests.scripts.toys import small_request

ON = {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn_row", "compute_mode": "FP8 matmul"}


def able() -> Machine:
    """The processor, said to multiply in 8 bits: it imitates the kernel exactly."""
    return replace(cpu_machine(), fp8_matmul=True)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engine = tiny_engine(tmp_path)
    engine._find_machine = able
    yield engine
    engine.unload()
    torch.set_num_threads(threads)


def make(engine: Engine, folder: Path, **settings: object) -> Result:
    return generate(small_request(steps=4, settings=settings), engine, Output(folder), Silent())


def test_images_are_close_recorded_and_restored(engine: Engine, tmp_path: Path) -> None:
    decoded = make(engine, tmp_path, **{**ON, "compute_mode": "Manual cast"})
    quick = make(engine, tmp_path, **ON)
    model = engine.model(
        None if engine.status.model is None else "tiny-sd1", PrecisionOptions.of(Settings().changed(**ON))
    )
    layers = [state for layer in model.unet.modules() if (state := stored_state(layer)) is not None]
    assert sum(state.product is fp8_product for state in layers) > 10
    one, other = decoded.samples[0].image, quick.samples[0].image
    assert (np.asarray(one) != np.asarray(other)).any()
    assert psnr_db(one, other) > 15  # the tiny model is noise; a trained one is far closer
    assert "Compute mode: FP8 matmul" in quick.samples[0].infotext
    parsed = parse_infotext(quick.samples[0].infotext)
    assert override_settings_from(parsed, Settings())["compute_mode"] == "FP8 matmul"
    assert pasted_values(parsed)["seed"] == 5


def test_where_there_is_none_it_says_so_and_decodes() -> None:
    options = PrecisionOptions.of(Settings().changed(**ON))
    plan = resolve(options, cpu_machine(), None)
    assert plan.mode is ComputeMode.MANUAL
    assert "needs an NVIDIA card of compute capability 8.9" in plan.notes[0]
    assert resolve(options, able(), None).mode is ComputeMode.FP8_MATMUL


def test_formats_that_cannot_be_multiplied_say_so() -> None:
    plan = resolve(replace(PrecisionOptions.of(Settings().changed(**ON)), fp8_format="int8_row"), able(), None)
    assert plan.mode is ComputeMode.MANUAL
    assert "no effect with int8_row" in plan.notes[0]
    off = resolve(replace(PrecisionOptions.of(Settings().changed(**ON)), fp8_storage="Disable"), able(), None)
    assert (off.mode, off.notes) == (ComputeMode.PLAIN, ())
