"""The compute mode int8 matmul from settings to images, and what it says where it has no effect."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lib_workbench.comparison.compare import INT8_MATMUL, UNSTORED, check_storages, compare, psnr_db
from modules.errors import UnknownNameError
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.memory.int8_matmul import Int8Product
from modules.memory.int8_support import Int8Support
from modules.memory.layer import stored_state
from modules.models.loading.precision import ComputeMode
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import Machine, PrecisionOptions, resolve
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.result import Result
from modules.settings.values import Settings
from tests.int8 import small_exact_products as small_exact_products
from tests.recordings import cpu_machine, tiny_engine
from tests.scripts.toys import small_request

ON = {"fp8_storage": "Enable", "fp8_format": "int8_row", "compute_mode": "int8 matmul"}


def able(ratio: float | None = 0.3) -> Machine:
    """The CPU, said to multiply int8 that fast."""
    return replace(cpu_machine(), int8=lambda dtype: Int8Support(ratio, "" if ratio else "no kernel"))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engine = tiny_engine(tmp_path)
    engine._find_machine = able
    yield engine
    engine.unload()
    torch.set_num_threads(threads)


def make(engine: Engine, folder: Path, prompt: str = "a cat", **settings: object) -> Result:
    return generate(small_request(prompt=prompt, steps=3, settings=settings), engine, Output(folder), Silent())


def used(engine: Engine) -> list[Int8Product]:
    """The products that were asked for."""
    assert engine._model is not None
    states = [stored_state(layer) for layer in engine._model.unet.modules()]
    products = [state.product for state in states if state is not None and isinstance(state.product, Int8Product)]
    return [product for product in products if product.error is not None]


@pytest.mark.parametrize("storage", ["int8_row", "int8_convrot"])
def test_images_are_close_recorded_and_restored(storage: str, engine: Engine, tmp_path: Path) -> None:
    on = {**ON, "fp8_format": storage}
    decoded = make(engine, tmp_path, **{**on, "compute_mode": "Manual cast"})
    quick = make(engine, tmp_path, **on)
    assert len(used(engine)) > 10
    one, other = decoded.samples[0].image, quick.samples[0].image
    assert (np.asarray(one) != np.asarray(other)).any()
    assert psnr_db(one, other) > 20  # the tiny model is noise; a trained one is far closer
    assert "Compute mode: int8 matmul" in quick.samples[0].infotext
    assert "Compute mode: Manual cast" in decoded.samples[0].infotext
    parsed = parse_infotext(quick.samples[0].infotext)
    assert override_settings_from(parsed, Settings())["compute_mode"] == "int8 matmul"


def test_streamed_weights_give_the_same_image(engine: Engine, tmp_path: Path) -> None:
    resident = make(engine, tmp_path, **ON, stream_weights="Off")
    for unit in ("Layers", "Blocks"):
        streamed = make(engine, tmp_path, **ON, stream_weights=unit)
        assert len(used(engine)) > 10
        assert streamed.samples[0].image.tobytes() == resident.samples[0].image.tobytes()


def test_a_comparison_has_rows_that_multiply_in_int8(engine: Engine, tmp_path: Path) -> None:
    storages = (UNSTORED, "int8_row", "int8_row" + INT8_MATMUL)
    rows = compare(small_request(), ["a cat"], storages, engine, Output(tmp_path), Silent())
    assert [row.storage for row in rows] == list(storages)
    assert len(used(engine)) > 10
    assert rows[1].psnr_db[0] > rows[2].psnr_db[0] > 20
    with pytest.raises(UnknownNameError, match="fp8_e5m2"):
        check_storages(["fp8_e5m2" + INT8_MATMUL])


def test_automatic_chooses_it_where_it_pays() -> None:
    options = replace(PrecisionOptions.of(Settings().changed(**ON)), compute_mode="Automatic")
    assert resolve(options, able(), None).mode is ComputeMode.INT8_MATMUL
    assert resolve(options, able(0.9), None).mode is ComputeMode.MANUAL
    assert resolve(options, able(None), None).mode is ComputeMode.MANUAL
    assert resolve(options, cpu_machine(), None).mode is ComputeMode.MANUAL
    assert resolve(replace(options, compute_mode="Manual cast"), able(), None).mode is ComputeMode.MANUAL
    assert resolve(replace(options, fp8_format="fp8_e4m3fn_row"), able(), None).mode is ComputeMode.MANUAL
    assert resolve(replace(options, fp8_storage="Disable"), able(), None).mode is ComputeMode.PLAIN


def test_another_mode_is_another_plan() -> None:
    options = PrecisionOptions.of(Settings().changed(**ON))
    quick, decoded = (resolve(options, machine, None) for machine in (able(), able(None)))
    assert quick.fingerprint != decoded.fingerprint
    assert quick.load_key != decoded.load_key


@pytest.mark.parametrize(
    ("changes", "machine", "words"),
    [
        ({}, able(None), "no kernel"),
        ({}, able(4.0), "4.00 of the time"),
        ({}, cpu_machine(), "no int8 product on cpu"),
        ({"fp8_format": "fp8_e4m3fn_row"}, able(), "no effect with fp8_e4m3fn_row"),
        ({"fp8_storage": "Disable"}, able(), "not stored in 8 bits"),
    ],
)
def test_where_it_has_no_effect_it_says_so(changes: dict[str, object], machine: Machine, words: str) -> None:
    plan = resolve(PrecisionOptions.of(Settings().changed(**{**ON, **changes})), machine, None)
    assert plan.mode in (ComputeMode.MANUAL, ComputeMode.PLAIN)
    assert words in plan.notes[0]
