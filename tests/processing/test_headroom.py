"""The VRAM headroom: counted by plans, measured before every call, kept by moving out what is missing and no more."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modules.memory.recovery import Fallback, Recovery, Step
from modules.memory.storage import stored_bytes
from modules.memory.streaming.groups import Level
from modules.models.loading.loaded import LoadedModel
from modules.processing.engine.engine import Engine
from modules.processing.engine.headroom import TURNS, GpuWatch, shortage
from modules.processing.engine.model_shelf import KeepOptions
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import Result
from modules.settings.values import Settings
from modules.system.devices import DeviceReading
from tests.models.test_gguf_files import output
from tests.processing.recorded import request_of
from tests.recordings import CONFIGS, tiny_engine

NAME = "tiny-sd1.safetensors"
MB = 1_000_000
BLOCK = 200_000  # bytes: small enough to take the tiny model's blocks apart
STEP = 2 * MB
SIZE = 400 * MB
PAYLOAD: dict[str, Any] = {"prompt": "a red cat", "seed": 7, "steps": 3, "width": 64, "height": 64}
PAYLOAD |= {"cfg_scale": 7, "sampler_name": "Euler"}


@dataclass
class Gpu:
    """Stands for a GPU of 400 MB of which other programs take `others`: it holds the weights of a model that are there,
    and `STEP` more in a step."""

    model: LoadedModel | None = None
    others: int = 0
    turns: bool = False
    total: int = SIZE
    cached: int = 0
    has_stepped: bool = False

    def read(self, *_: object) -> DeviceReading:
        held = 0 if self.model is None else self._held(self.model)
        peak = held + (STEP if self.has_stepped else 0)
        reserved = held + self.cached
        return DeviceReading(max(0, self.total - self.others - reserved), self.total, reserved, held, peak)

    def _held(self, model: LoadedModel) -> int:
        handle = model.streaming
        there = sum(stored_bytes(module) for module in ([model.unet] if self.turns else model.modules))
        # A group that stays comes with its first use; what is in use comes and goes.
        return there + (0 if handle is None else handle.streamer.kept_bytes)

    def free_in_step(self) -> int:
        now = self.read()
        return now.free + now.reserved - now.allocated - STEP


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = tiny_engine(tmp_path_factory.mktemp("cache"))
    yield engine
    engine.unload()


@pytest.fixture
def model(engine: Engine) -> Iterator[LoadedModel]:
    model = engine.model(NAME)
    model.step_bytes = 0
    model.step_times.clear()
    yield model
    if model.streaming is not None:
        model.streaming.remove()
        model.streaming = None


@dataclass
class Watched:
    gpu: Gpu
    watch: GpuWatch
    recovery: Recovery

    def step(self) -> None:
        self.watch.begin("denoise", self.recovery, lambda: None)
        self.gpu.has_stepped = True


def watched(model: LoadedModel, headroom: int, others: int, can_turn: bool = True) -> Watched:
    device = Gpu(model, others)

    def turn() -> Step | None:
        if device.turns or not can_turn:
            return None
        device.turns = True
        return Step("turns", lambda: setattr(device, "turns", False))

    watch = GpuWatch(model, headroom, device.read, max_block_bytes=BLOCK)
    return Watched(device, watch, Recovery([Fallback(TURNS, frozenset(), turn)]))


def streams(model: LoadedModel) -> bool:
    return model.streaming is not None


def has_turned(job: Watched) -> bool:
    return job.gpu.turns


def weights(model: LoadedModel) -> int:
    return sum(stored_bytes(module) for module in model.modules)


def test_what_fits_is_never_moved_out(model: LoadedModel) -> None:
    others = SIZE - weights(model) - STEP - 5 * MB
    job = watched(model, 5 * MB, others=others)
    for _ in range(3):
        job.step()
    assert not has_turned(job) and not streams(model) and job.watch.notices == ()
    job.gpu.cached = 4 * MB  # what the allocator holds unused can go back
    job.step()
    assert not has_turned(job) and not streams(model)


def test_other_components_wait_before_the_denoiser_is_streamed(model: LoadedModel) -> None:
    job = watched(model, 5 * MB, others=SIZE - weights(model) - STEP - 4 * MB)
    job.step()
    assert not has_turned(job)  # the first step has not shown yet what it takes
    job.step()
    assert has_turned(job) and not streams(model)
    assert job.gpu.free_in_step() >= 5 * MB
    assert len(job.watch.notices) == 1 and "wait in main memory" in job.watch.notices[0]
    job.recovery.close()
    assert not has_turned(job)


def test_as_much_of_the_denoiser_is_streamed_as_is_missing_and_more_later(model: LoadedModel) -> None:
    job = watched(model, 5 * MB, can_turn=False, others=SIZE - weights(model) - STEP - 4 * MB)
    job.step()
    job.step()
    handle = model.streaming
    assert handle is not None
    first = handle.streamer.kept_bytes
    assert handle.offloaded_bytes - 8 * MB < first < handle.offloaded_bytes - MB
    assert job.gpu.free_in_step() >= 5 * MB
    job.step()
    assert handle.streamer.kept_bytes == first  # it is enough
    job.gpu.others += 2 * MB  # another program wants more in the middle of the job
    job.step()
    assert handle.streamer.kept_bytes < first - MB and job.gpu.free_in_step() >= 5 * MB
    job.gpu.others = SIZE
    for _ in range(8):  # of a full device one cannot know how much others want: it goes on step by step
        job.step()
    assert handle.levels["unet"] is Level.LAYER
    assert any("only" in notice and "could be left free" in notice for notice in job.watch.notices)


def test_weights_come_back_before_a_job_that_has_room_for_them(model: LoadedModel) -> None:
    before = {name: weight.clone() for name, weight in model.unet.named_parameters()}
    job = watched(model, 5 * MB, can_turn=False, others=SIZE - weights(model) - STEP - 4 * MB)
    job.step()
    job.step()
    assert streams(model)
    output(model)  # brings what stays
    again = GpuWatch(model, 5 * MB, job.gpu.read)
    again.begin_job()
    assert streams(model)  # there is no more room than before
    job.gpu.others -= 3 * MB
    again.begin_job()
    assert not streams(model)
    for name, weight in model.unet.named_parameters():
        assert weight.equal(before[name]), name


def test_shortage() -> None:
    now = DeviceReading(free=3, total=20, reserved=10, allocated=6, peak=9)
    assert shortage(now, 5, 2) == 0  # 3 + 4 unused - 2
    assert shortage(now, 7, 2) == 2


def _make(engine: Engine, folder: Path, gb: float) -> Result:
    request = request_of({**PAYLOAD, "override_settings": {"vram_headroom_gb": gb}})
    return generate(request, engine, Output(folder), Silent())


def test_a_job_keeps_the_headroom_and_makes_the_same_image(engine: Engine, tmp_path: Path) -> None:
    expected = _make(engine, tmp_path, 0)
    machine, model = engine.machine, engine.model(NAME)
    gpu = Gpu(model, others=SIZE - weights(model) - 6 * MB)
    engine._machine = replace(machine, read_memory=gpu.read)
    try:
        assert _make(engine, tmp_path, 0).notices == expected.notices
        assert not streams(model)
        result = _make(engine, tmp_path, 0.01)  # 10 MB, where 6 are free
        assert streams(model)
        assert any("VRAM headroom" in notice for notice in result.notices)
        assert np.array_equal(np.asarray(result.samples[0].image), np.asarray(expected.samples[0].image))
        gpu.others = 0
        result = _make(engine, tmp_path, 0.01)
        assert engine.model(NAME) is model and not streams(model)
        assert np.array_equal(np.asarray(result.samples[0].image), np.asarray(expected.samples[0].image))
    finally:
        engine._machine = machine


def test_plans_count_with_what_is_free_without_the_headroom(engine: Engine) -> None:
    machine = engine.machine
    engine._machine = replace(machine, read_memory=Gpu(total=9_000 * MB).read)
    try:
        estimator = MemoryEstimator(engine, CONFIGS)
        made = GenerationRequest(width=64, height=64, checkpoint=NAME, settings=Settings())
        assert estimator.plan(made).available_bytes == 9_000 * MB
        kept = replace(made, settings=Settings().with_changes({"vram_headroom_gb": 2.5}))
        assert estimator.plan(kept).available_bytes == 6_500 * MB
        assert KeepOptions.of(kept.settings).headroom_bytes == 2_500 * MB
    finally:
        engine._machine = machine


def test_nothing_is_watched_where_the_device_does_not_say(model: LoadedModel) -> None:
    watch = GpuWatch(model, 60 * MB, lambda: None)
    watch.begin_job()
    watch.begin("denoise", Recovery(), lambda: None)
    assert not streams(model) and watch.notices == ()
