"""Plans of jobs: weights from the header alone, stages rehearsed, corrections learnt."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.memory.timeline import MemoryRecord, Reading, StagePeak
from modules.models.sketch import sketch_model
from modules.processing.engine import Engine
from modules.processing.planning import CLIENT_BYTES, Planner, available, container_bytes
from modules.processing.precision import PrecisionWish, resolve
from modules.processing.requests import HiresRequest, Txt2ImgRequest
from modules.processing.results import GenerationInfo, Result
from modules.settings.values import Settings
from tests.recordings import CONFIGS, tiny_engine

NAME = "tiny-sd1.safetensors"
MB = 1_000_000


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = tiny_engine(tmp_path_factory.mktemp("cache"))
    yield engine
    engine.unload()


@pytest.fixture(scope="module")
def planner(engine: Engine) -> Planner:
    """One that has learnt nothing."""
    return Planner(engine, CONFIGS)


def request(settings: dict[str, Any] | None = None, **values: Any) -> Txt2ImgRequest:
    return Txt2ImgRequest(
        **{"width": 64, "height": 64, "checkpoint": NAME, **values}, settings=Settings().with_changes(settings or {})
    )


def needs(planner: Planner, wanted: Txt2ImgRequest) -> dict[str, int]:
    return {stage.stage: stage.needs_bytes for stage in planner.plan(wanted).stages}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fp8_storage": "Enable"},
        {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn", "fp8_text_encoder": False},
        {"fp8_storage": "Enable", "fp8_skip": "attn", "compute_dtype": "bf16"},
    ],
    ids=str,
)
def test_the_header_tells_what_the_weights_will_weigh(settings: dict[str, Any], engine: Engine) -> None:
    wish = PrecisionWish.of(Settings().with_changes(settings))
    sketch = sketch_model(engine.catalogue.get(NAME), CONFIGS)
    plan = resolve(wish, engine.machine, sketch.family)
    weights = sum(sum(sizes.values()) for sizes in sketch.weights(plan).values())
    assert weights == pytest.approx(engine.model(NAME, wish).stored_bytes, rel=0.001)


def test_larger_pictures_and_batches_need_more_where_they_do(planner: Planner) -> None:
    small, large, batch = (
        needs(planner, request()),
        needs(planner, request(width=128, height=128)),
        needs(planner, request(batch_size=4)),
    )
    assert list(small) == ["load", "text", "denoise", "decode", "save"]
    assert large["denoise"] > small["denoise"] and large["decode"] > small["decode"]
    assert batch["denoise"] > small["denoise"] and batch["decode"] == small["decode"]  # pictures are decoded singly
    assert large["load"] == small["load"]


def test_what_saves_memory_shows(planner: Planner) -> None:
    usual, apart = needs(planner, request()), needs(planner, request({"batch_cond_uncond": False}))
    assert apart["denoise"] < usual["denoise"]
    whole = needs(planner, request({"cross_attention_optimization": "None"}, width=256, height=256))
    assert whole["denoise"] > needs(planner, request(width=256, height=256))["denoise"]
    fp8 = planner.plan(request({"fp8_storage": "Enable"}))
    assert fp8.weights_bytes < planner.plan(request()).weights_bytes


def test_hires_fix_is_a_stage_of_its_own(planner: Planner) -> None:
    found = needs(planner, request(hires=HiresRequest(scale=2.0)))
    assert found["denoise larger"] > found["denoise"]
    assert found["decode"] == needs(planner, request(width=128, height=128))["decode"]
    assert (
        needs(planner, request(hires=HiresRequest(upscaler="Lanczos", scale=2.0)))["denoise larger"]
        >= found["denoise larger"]
    )


def test_networks_count(planner: Planner) -> None:
    found = needs(planner, request(prompt="a cat <lora:tiny-lora-a:1>"))
    assert "networks" in found and found["denoise"] > needs(planner, request())["denoise"]
    assert "networks" not in needs(planner, request(prompt="a cat <lora:not-there:1>"))


def test_fits_by_what_is_free_and_by_what_it_is_asked_for(planner: Planner) -> None:
    plan = planner.plan(request())
    assert plan.fits and plan.available_bytes is not None and plan.available_bytes > plan.needs_bytes
    assert not planner.plan(request(), available_bytes=plan.needs_bytes - 1).fits
    assert planner.plan(request(), available_bytes=plan.needs_bytes).fits
    assert CLIENT_BYTES < plan.needs_bytes < CLIENT_BYTES + 400 * MB


def result_of(peaks: dict[str, int], begin: int, **info: Any) -> Result:
    """A finished job whose stages took these bytes of main memory."""
    stages = tuple(
        StagePeak(stage, float(i), i + 1.0, Reading(begin), Reading(peak))
        for i, (stage, peak) in enumerate(peaks.items())
    )
    record = MemoryRecord("cpu", Reading(begin), stages, ())
    facts: dict[str, Any] = dict.fromkeys(GenerationInfo.__dataclass_fields__, None)
    return Result(pictures=(), info=GenerationInfo(**{**facts, "extra_params": {}, **info}), memory=record)


def test_after_a_job_the_same_one_is_known_and_others_follow(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    planner = Planner(engine, CONFIGS, path)
    before = needs(planner, request(width=128, height=128))
    peaks = {"text": 610 * MB, "denoise": 640 * MB, "decode": 700 * MB, "save": 600 * MB}
    planner.learn(request(), result_of(peaks, 600 * MB))
    assert {stage: size for stage, size in needs(planner, request()).items() if stage in peaks} == peaks
    after = needs(planner, request(width=128, height=128))
    assert after["decode"] > peaks["decode"] and after != before
    again = Planner(engine, CONFIGS, path)  # another start of the program
    assert needs(again, request())["decode"] == peaks["decode"]
    assert (again.plan(request()).learnt_from, planner.plan(request(batch_size=2)).learnt_from) == (1, 1)


def test_interrupted_and_recovered_jobs_teach_nothing(engine: Engine) -> None:
    planner = Planner(engine, CONFIGS)
    result = result_of({"denoise": 900 * MB}, 600 * MB)
    planner.learn(request(), replace(result, interrupted=True))
    planner.learn(request(), replace(result, memory=None))
    planner.learn(request(), result_of({"denoise": 900 * MB}, 600 * MB, extra_params={"Memory recovery": "tiled VAE"}))
    assert planner.plan(request()).learnt_from == 0


def test_learning_in_the_background_logs_what_goes_wrong(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    planner = Planner(engine, CONFIGS)
    planner.learn_later(request(checkpoint="gone.safetensors"), result_of({"denoise": 900 * MB}, 600 * MB))
    planner.close()
    assert "gone.safetensors" in caplog.text


def test_a_containers_limit(tmp_path: Path) -> None:
    assert container_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    (tmp_path / "memory.current").write_text("3000\n", encoding="ascii")
    assert container_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("5000\n", encoding="ascii")
    assert container_bytes(tmp_path) == 2000
    free = available(torch.device("cpu"))
    assert free is None or free > 100 * MB
