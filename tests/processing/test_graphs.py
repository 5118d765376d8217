"""The setting "CUDA graphs" in image jobs: the same images, and a notice where it has no effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from modules.memory.graphs import GraphMode
from modules.models.families.denoiser_context import DenoiserContext, Extra
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import Machine, PrecisionOptions
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.result import Result
from modules.settings.values import Settings
from tests.memory.recording import LogRecorder
from tests.recordings import CONFIGS, REFERENCE, TINY, tiny_engine
from tests.scripts.toys import small_hires, small_request


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> LogRecorder:
    recorder = LogRecorder()
    monkeypatch.setattr("modules.models.loading.loaded.recorder_of", lambda device: recorder)
    return recorder


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = tiny_engine(tmp_path)
    yield engine
    engine.unload()


def make(
    engine: Engine, folder: Path, graphs: str = "On", settings: dict[str, Any] | None = None, **values: Any
) -> Result:
    request = small_request(settings={"cuda_graphs": graphs, **(settings or {})}, **values)
    return generate(request, engine, Output(folder), Silent())


def images(result: Result) -> np.ndarray[Any, Any]:
    return np.stack([np.asarray(sample.image) for sample in result.samples])


@pytest.mark.parametrize(
    "values",
    [
        {"steps": 6},
        {"steps": 6, "settings": {"batch_cond_uncond": False}},
        {"steps": 6, "settings": {"fp8_storage": "Enable"}},
        {"steps": 6, "batch_size": 2, "batch_count": 2},
        {"steps": 6, "prompt": "a red cat <lora:tiny-lora-a:0.7>", "settings": {"fp8_storage": "Enable"}},
        {"steps": 4, "hires": small_hires()},
        {"steps": 6, "sampler": "DPM++ 2M", "prompt": "a [red:blue:0.5] cat AND a dog"},
    ],
    ids=["plain", "apart", "fp8", "batch", "lora", "hires", "scheduled"],
)
def test_images_are_those_without(
    values: dict[str, Any], engine: Engine, recorder: LogRecorder, tmp_path: Path
) -> None:
    plain = images(make(engine, tmp_path, "Off", **values))
    assert recorder.recorded == 0
    result = make(engine, tmp_path, **values)
    assert recorder.recorded > 0 and recorder.replayed > 0 and result.replayed_calls > 0
    assert np.array_equal(images(result), plain)
    assert not any("CUDA graphs" in note for note in result.notices)


def test_another_job_replays_what_the_first_recorded(engine: Engine, recorder: LogRecorder, tmp_path: Path) -> None:
    make(engine, tmp_path, steps=4)
    replayed = recorder.replayed
    again = make(engine, tmp_path, steps=4, seed=6)
    assert (recorder.recorded, recorder.replayed) == (1, replayed + 4)
    assert np.array_equal(images(again), images(make(engine, tmp_path, "Off", steps=4, seed=6)))


def test_a_lora_and_another_strength_are_seen(engine: Engine, recorder: LogRecorder, tmp_path: Path) -> None:
    for prompt in ("a red cat", "a red cat <lora:tiny-lora-a:1>", "a red cat <lora:tiny-lora-a:0.4>", "a red cat"):
        values: dict[str, Any] = {"prompt": prompt, "steps": 5, "settings": {"fp8_storage": "Enable"}}
        recorded = images(make(engine, tmp_path, **values))
        assert np.array_equal(recorded, images(make(engine, tmp_path, "Off", **values))), prompt


def residual_shapes(unet: Any, x: Tensor, t: Tensor, text: Tensor) -> list[torch.Size]:
    """Of what a control net adds to the skip connections, and last to the middle."""
    shapes: list[torch.Size] = []
    handles = [unet.conv_in.register_forward_hook(lambda module, given, made: shapes.append(made.shape))]
    for block in unet.down_blocks:
        handles.append(
            block.register_forward_hook(lambda module, given, made: shapes.extend(each.shape for each in made[1]))
        )
    handles.append(unet.mid_block.register_forward_hook(lambda module, given, made: shapes.append(made.shape)))
    unet(x, t, encoder_hidden_states=text)
    for handle in handles:
        handle.remove()
    return shapes


@torch.inference_mode()
def test_residuals_of_control_nets_are_those_of_the_call(engine: Engine, recorder: LogRecorder) -> None:
    model = engine.model(TINY.name, PrecisionOptions())
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def predicted(steps: int) -> list[Tensor]:
        generator.manual_seed(1)
        found = []
        for step in range(steps):
            extra: dict[str, Extra] = {
                "down_block_additional_residuals": tuple(noise(*shape) for shape in shapes[:-1]),
                "mid_block_additional_residual": noise(*shapes[-1]),
            }
            context = DenoiserContext(noise(2, 77, model.text_widths[0]), extra=extra)
            found.append(model.predict(noise(2, 4, 8, 8), torch.full((2,), 900.0 - step), context))
        return found

    shapes = residual_shapes(model.unet, noise(2, 4, 8, 8), torch.ones(2), noise(2, 77, model.text_widths[0]))
    computed = predicted(6)
    model.graphs.begin_job(GraphMode.ON)
    replayed = predicted(6)
    assert model.graphs.replays == 3
    assert all(torch.equal(one, other) for one, other in zip(computed, replayed, strict=True))


def test_token_merging_goes_without(engine: Engine, recorder: LogRecorder, tmp_path: Path) -> None:
    values: dict[str, Any] = {"steps": 4, "settings": {"token_merging_ratio": 0.5}}
    result = make(engine, tmp_path, **values)
    assert recorder.recorded == 0
    assert any("CUDA graphs have no effect" in note and "token merging" in note for note in result.notices)
    assert np.array_equal(images(result), images(make(engine, tmp_path, "Off", **values)))


@pytest.mark.parametrize("level", ["Parts", "Blocks"])
def test_streamed_weights_go_without(level: str, engine: Engine, recorder: LogRecorder, tmp_path: Path) -> None:
    result = make(engine, tmp_path, steps=4, settings={"stream_weights": level})
    assert recorder.recorded == 0
    assert any("CUDA graphs have no effect: the weights are streamed" in note for note in result.notices)


def test_without_a_gpu_a_notice_says_so(engine: Engine, tmp_path: Path) -> None:
    result = make(engine, tmp_path)
    assert any("only NVIDIA GPUs record them" in note for note in result.notices)
    assert not any("CUDA graphs" in note for note in make(engine, tmp_path, "Automatic").notices)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("storage", ["Disable", "Enable"])
def test_on_a_card_images_are_those_without(storage: str, tmp_path: Path) -> None:
    machine = Machine(torch.device("cuda"), torch.float16, torch.float16)
    catalogue = CheckpointCatalogue([REFERENCE / "models"], HashCache(tmp_path / "hashes.json"))
    engine = Engine(catalogue, CONFIGS, lambda: machine)
    settings = {"fp8_storage": storage}
    plain = images(make(engine, tmp_path, "Off", steps=8, settings=settings))
    result = make(engine, tmp_path, steps=8, settings=settings)
    options = PrecisionOptions.of(Settings().with_changes(settings))
    assert engine.model(TINY.name, options).graphs.replays >= 4
    assert np.array_equal(images(result), plain) and not any("CUDA graphs" in note for note in result.notices)
    engine.unload()
