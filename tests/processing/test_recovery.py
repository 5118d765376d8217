"""Jobs that run out of memory at every stage, once and again, and still give the same image."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.errors import MemoryShortageError
from modules.images.infotext import parse_infotext
from modules.models.loading.unet_running import UnetRunner, rows_of
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.engine.recovery import recovering, recovery_names, recovery_notices
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.result import Result
from modules.processing.request.source_images import FromImage, SourceImage
from modules.settings.values import Settings
from tests.processing.recorded import request_of
from tests.thorough import thoroughly

PAYLOAD: dict[str, Any] = {
    "prompt": "a red cat on a chair",
    "negative_prompt": "blurry",
    "seed": 7,
    "steps": 3,
    "cfg_scale": 7,
    "width": 64,
    "height": 64,
    "sampler_name": "Euler a",  # fresh noise at every step
    "batch_size": 2,
}
HIRES = {**PAYLOAD, "enable_hr": True, "hr_upscaler": "Lanczos", "hr_scale": 2, "denoising_strength": 0.6}
LORA = {**PAYLOAD, "prompt": "a red cat <lora:tiny-lora-a:0.8>"}
FALLBACKS = 20  # more than there are
NAME = "tiny-sd1.safetensors"


@pytest.fixture
def fresh_prompts(engine: Engine) -> None:
    """Nothing is in the prompt cache."""
    engine.conditioner(NAME).clear()


def make(engine: Engine, folder: Path, payload: dict[str, Any], settings: dict[str, Any] | None = None) -> Result:
    request = request_of({**payload, "override_settings": settings or {}})
    return generate(request, engine, Output(folder), Silent())


def pixels(result: Result) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.stack([np.asarray(image.image).astype(np.int64) for image in result.samples])


@pytest.fixture(scope="module")
def whole(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What `PAYLOAD` gives where memory is enough."""
    return make(engine, tmp_path_factory.mktemp("whole"), PAYLOAD)


class Failing:
    """A function that runs out of memory the first `times` of its calls after the first `after`."""

    def __init__(self, function: Callable[..., Any], times: int, after: int = 0) -> None:
        self.function, self.left, self.after = function, times, after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.after:
            self.after -= 1
        elif self.left:
            self.left -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.function(*args, **kwargs)


def fail(monkeypatch: pytest.MonkeyPatch, where: str, times: int, after: int = 0) -> Failing:
    """Have the function at this dotted path run out of memory."""
    module_name, _, rest = where.partition(":")
    owner: Any = __import__(module_name, fromlist=["_"])
    *path, name = rest.split(".")
    for part in path:
        owner = getattr(owner, part)
    failing = Failing(getattr(owner, name), times, after)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: failing(*args, **kwargs))
    return failing


STAGES = {
    "adapters": ("modules.adapters.applying:AdapterApplier.apply", LORA),
    "text": ("modules.models.text_encoders.clip_encoder:ClipTextEncoder.encode", PAYLOAD),
    "denoise": ("modules.models.loading.loaded:LoadedModel._predict", PAYLOAD),
    "encode": ("modules.models.autoencoders.running:VaeRunner._moments", HIRES),
    "decode": ("modules.models.autoencoders.running:VaeRunner._decode", PAYLOAD),
    "enlarge": ("modules.processing.pipeline.starts.latents:_larger", HIRES),
    "save": ("modules.processing.record.recorder:to_images", PAYLOAD),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.usefixtures("fresh_prompts")
def test_once_at_any_stage_freeing_gives_the_very_same_image(
    stage: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, payload = STAGES[stage]
    expected = make(engine, tmp_path, payload)
    engine.conditioner(NAME).clear()
    if stage == "adapters":
        make(engine, tmp_path, PAYLOAD)  # takes the network off again
    failing = fail(monkeypatch, where, 1)
    result = make(engine, tmp_path, payload)
    assert failing.left == 0
    assert np.array_equal(pixels(result), pixels(expected))
    assert [item.infotext for item in result.samples] == [item.infotext for item in expected.samples]
    assert any("Memory ran out" in notice and "with freed memory" in notice for notice in result.notices)


@pytest.mark.parametrize(
    ("times", "fallbacks"), [(1, None), thoroughly(2, "query slices"), (3, "query slices, tiled VAE")]
)
def test_an_image_to_start_from_is_encoded_with_less(
    times: int, fallbacks: str | None, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = SourceImage.of(Image.effect_noise((64, 64), 90).convert("RGB"))
    request = replace(request_of(PAYLOAD), start=FromImage(images=(image,), denoising_strength=0.0))
    expected = generate(request, engine, Output(tmp_path), Silent())
    failing = fail(monkeypatch, STAGES["encode"][0], times)
    result = generate(request, engine, Output(tmp_path), Silent())
    assert failing.left == 0 and np.abs(pixels(result) - pixels(expected)).max() <= 1
    assert parse_infotext(result.samples[0].infotext).get("Memory recovery") == fallbacks
    assert any("while encoding the image" in notice for notice in result.notices)


# At the first step and later: each fallback at one of them.
@pytest.mark.parametrize(
    ("times", "fallbacks", "after"),
    [
        (2, "query slices", 0),
        (3, "query slices, split feed-forward", 1),
        (4, "query slices, split feed-forward, halved batch", 0),
        (5, "query slices, split feed-forward, halved batch", 1),
        thoroughly(2, "query slices", 1),
        thoroughly(3, "query slices, split feed-forward", 0),
        thoroughly(4, "query slices, split feed-forward, halved batch", 1),
        thoroughly(5, "query slices, split feed-forward, halved batch", 0),
    ],
)
def test_each_fallback_while_denoising_gives_the_same_image(
    times: int,
    fallbacks: str,
    after: int,
    engine: Engine,
    whole: Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = whole
    fail(monkeypatch, STAGES["denoise"][0], times, after)
    result = make(engine, tmp_path, PAYLOAD)
    # Kernels for fewer rows add up in another order; slices of attention do not.
    assert np.abs(pixels(result) - pixels(expected)).max() <= (1 if "batch" in fallbacks else 0)
    assert parse_infotext(result.samples[0].infotext)["Memory recovery"] == fallbacks
    assert make(engine, tmp_path, PAYLOAD).notices == expected.notices  # nothing of it is left for the next job


@pytest.mark.parametrize("times", [2, 3])
def test_each_fallback_while_decoding_gives_the_same_image(
    times: int, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = {**PAYLOAD, "width": 320, "height": 192, "steps": 1, "batch_size": 1}
    expected = make(engine, tmp_path, payload)
    fail(monkeypatch, STAGES["decode"][0], times)
    result = make(engine, tmp_path, payload)
    apart = np.abs(pixels(result) - pixels(expected))
    assert apart.max() <= (1 if times > 2 else 0)  # tiles: the sums of a norm are added up in another order
    names = str(parse_infotext(result.samples[0].infotext)["Memory recovery"])
    assert ("tiled VAE" in names) == (times > 2)


@pytest.mark.parametrize(
    ("times", "last"),
    [
        (7, "streamed blocks"),
        thoroughly(8, "streamed blocks, streamed layers"),  # the last of them goes through it
        (9, "streamed blocks, streamed layers, UNet on the CPU"),
    ],
)
def test_the_device_is_left_step_by_step_and_everything_comes_back(
    times: int, last: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a device that can be left (here the CPU itself stands for it)."""
    expected = make(engine, tmp_path, PAYLOAD)
    model = engine.model(NAME)
    before = {name: (p.device, p.dtype, p.clone()) for name, p in model.unet.named_parameters()}
    real = recovering
    monkeypatch.setattr(
        "modules.processing.engine.lease.recovering",
        lambda model, attention, upscaling, **_: real(model, attention, upscaling, leave_device=True),
    )
    fail(monkeypatch, STAGES["denoise"][0], times)
    result = make(engine, tmp_path, PAYLOAD)
    assert np.abs(pixels(result) - pixels(expected)).max() <= 1
    names = f"components take turns, query slices, split feed-forward, halved batch, {last}"
    assert parse_infotext(result.samples[0].infotext)["Memory recovery"] == names
    after = {name: (p.device, p.dtype, p) for name, p in model.unet.named_parameters()}
    assert before.keys() == after.keys()
    for name, (device, dtype, weight) in before.items():
        assert after[name][:2] == (device, dtype) and torch.equal(after[name][2], weight), name
    assert model.unet_runner == UnetRunner(rows=model.unet_runner.rows)
    assert np.array_equal(pixels(make(engine, tmp_path, PAYLOAD)), pixels(expected))


@pytest.mark.parametrize("stage", ["text", "denoise", "decode"])
@pytest.mark.usefixtures("fresh_prompts")
def test_when_nothing_helps_the_job_fails_in_a_sentence_and_the_next_one_works(
    stage: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, payload = STAGES[stage]
    expected = make(engine, tmp_path, payload)
    engine.conditioner(NAME).clear()
    with monkeypatch.context() as patch:
        fail(patch, where, FALLBACKS)
        with pytest.raises(MemoryShortageError, match=f"Memory ran out .{stage}: CUDA out of memory.*smaller size"):
            make(engine, tmp_path, payload)
    engine.conditioner(NAME).clear()
    result = make(engine, tmp_path, payload)
    assert np.array_equal(pixels(result), pixels(expected))
    assert result.notices == expected.notices


def test_fp8_weights_recover_too(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fp8 = {"fp8_storage": "Enable"}
    payload = {**LORA, "prompt": "a red cat <lora:tiny-lora-a:0.8>"}
    expected = make(engine, tmp_path, payload, fp8)
    fail(monkeypatch, STAGES["denoise"][0], 5)
    result = make(engine, tmp_path, payload, fp8)
    assert np.abs(pixels(result) - pixels(expected)).max() <= 1
    assert "halved batch" in str(parse_infotext(result.samples[0].infotext)["Memory recovery"])


@pytest.mark.parametrize(
    "settings",
    [
        thoroughly({"split_feed_forward": "2"}),  # below beside streaming
        thoroughly({"split_feed_forward": "Automatic"}),
        {"cross_attention_optimization": "Doggettx"},
        {"token_merging_ratio": 0.5},
        thoroughly({"stream_weights": "Parts"}),  # `test_a_streamed_model_can_compute_on_the_cpu` goes further
        {"stream_weights": "Blocks", "fp8_storage": "Enable"},
        {"stream_weights": "Layers", "split_feed_forward": "2"},
    ],
    ids=str,
)
def test_recovery_under_other_techniques(
    settings: dict[str, Any], engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = make(engine, tmp_path, PAYLOAD, settings)
    finer = {"Parts": ["blocks", "layers"], "Blocks": ["blocks", "layers"], "Layers": ["layers"]}
    streamed = finer.get(settings.get("stream_weights", ""), [])
    with monkeypatch.context() as patch:
        fail(patch, STAGES["denoise"][0], 5 + len(streamed), after=1)
        result = make(engine, tmp_path, PAYLOAD, settings)
    assert np.abs(pixels(result) - pixels(expected)).max() <= 1
    names = ["query slices", "split feed-forward", "halved batch", *(f"streamed {word}" for word in streamed)]
    assert parse_infotext(result.samples[0].infotext)["Memory recovery"] == ", ".join(names)
    again = make(engine, tmp_path, PAYLOAD, settings)
    assert np.array_equal(pixels(again), pixels(expected)) and again.notices == expected.notices


@pytest.mark.usefixtures("fresh_prompts")
def test_text_encoders_stream_their_layers_when_memory_runs_out(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"stream_weights": "Parts"}
    expected = make(engine, tmp_path, PAYLOAD, settings)
    engine.conditioner(NAME, PrecisionOptions.of(Settings().with_changes(settings))).clear()
    with monkeypatch.context() as patch:
        fail(patch, STAGES["text"][0], 2)
        result = make(engine, tmp_path, PAYLOAD, settings)
    assert np.array_equal(pixels(result), pixels(expected))
    assert parse_infotext(result.samples[0].infotext)["Memory recovery"] == "streamed layers"


def test_a_streamed_model_can_compute_on_the_cpu(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"stream_weights": "Parts"}
    expected = make(engine, tmp_path, PAYLOAD, settings)
    real = recovering
    with monkeypatch.context() as patch:
        patch.setattr(
            "modules.processing.engine.lease.recovering",
            lambda model, attention, upscaling, **_: real(model, attention, upscaling, leave_device=True),
        )
        fail(patch, STAGES["denoise"][0], 8)
        fail(patch, STAGES["decode"][0], 3)
        result = make(engine, tmp_path, PAYLOAD, settings)
    assert np.abs(pixels(result) - pixels(expected)).max() <= 1
    names = str(parse_infotext(result.samples[0].infotext)["Memory recovery"])
    assert names.endswith("streamed blocks, streamed layers, UNet on the CPU, tiled VAE, VAE on the CPU")
    assert np.array_equal(pixels(make(engine, tmp_path, PAYLOAD, settings)), pixels(expected))


def test_other_errors_are_not_taken_for_memory(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("modules.models.loading.loaded.LoadedModel._predict", broken)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        make(engine, tmp_path, PAYLOAD)


def test_what_is_said_about_it(engine: Engine) -> None:
    with recovering(engine.model(NAME), None) as recovery:
        assert recovery_names(recovery) is None and recovery_notices(recovery) == []


def test_rows_of_nested_conditionings() -> None:
    tensor = torch.arange(4)
    value = {"a": tensor, "b": (tensor, None, 3), "c": [torch.tensor(5)]}
    found = rows_of(value, 1, 3)
    assert found["a"].tolist() == [1, 2] and found["b"][0].tolist() == [1, 2]
    assert found["b"][1:] == (None, 3) and int(found["c"][0]) == 5
