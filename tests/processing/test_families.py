"""Every family makes images from a tiny file, and in each precision some do."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from modules.adapters.tags import LoraTag
from modules.errors import InvalidValueError
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.hooks import NO_HOOKS, Hooks
from modules.processing.request.model_use import DenoiserInputs, ModelUse
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.result import Result
from modules.settings.values import Settings
from tests.extensions import adapters_of
from tests.models.family_files import FAMILY_NAMES, TINY_FAMILIES, write_family, write_yaml
from tests.recordings import CONFIGS, cpu_machine
from tests.thorough import usually

LORA_OF = {"sd3": "transformer", "sd3.5": "transformer", "sdxl-pruned": "pruned"}  # the others have a middle block
PREDICTIONS = {"v": "v_prediction", "eps": "epsilon"}  # by their names in a YAML
FORMATS = ("fp8_e4m3fn", "fp8_e5m2", "fp8_e4m3fn_row", "int8_row", "int8_convrot")
DISTILLED = ("sd-turbo", "sdxl-turbo")  # to these networks nothing is new
# Each family in one format and each format in some families; one network of each kind in a second format.
STORED = [(name, FORMATS[place % len(FORMATS)]) for place, name in enumerate(FAMILY_NAMES)] + [
    (name, FORMATS[(FAMILY_NAMES.index(name) + 2) % len(FORMATS)]) for name in ("sd1", "sdxl", "sd3.5")
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("families")
    models, loras = folder / "models", folder / "loras"
    models.mkdir()
    loras.mkdir()
    for name in FAMILY_NAMES:
        write_family(models, name)
    for name, key, width in (
        ("first", "lora_te1_text_model_encoder_layers_0_self_attn_q_proj", 64),
        ("second", "lora_te2_text_model_encoder_layers_0_self_attn_q_proj", 128),
        ("unet", "lora_unet_middle_block_1_transformer_blocks_0_attn1_to_q", 64),
        ("pruned", "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q", 64),
        ("transformer", "lora_unet_transformer_blocks_0_attn_to_q", 128),
    ):
        torch.manual_seed(1)
        factors = {"lora_down": torch.randn(4, width) / width**0.5, "lora_up": torch.randn(width, 4)}
        save_file({f"{key}.{part}.weight": tensor for part, tensor in factors.items()}, loras / f"{name}.safetensors")
    catalogue = CheckpointCatalogue([models], HashCache(folder / "hashes.json"))
    return Engine(catalogue, CONFIGS, cpu_machine, models=ExtraModels(adapters=adapters_of(loras)))


def image(
    engine: Engine,
    checkpoint: str,
    prompt: str = "a red cat",
    size: int = 64,
    steps: int = 2,
    hooks: Hooks = NO_HOOKS,
    **settings: object,
) -> Result:
    request = GenerationRequest(
        prompt=prompt,
        checkpoint=checkpoint,
        width=size,
        height=64,
        steps=steps,
        seed=1,
        subseed=0,
        sampler="Euler",
        save_images=False,
        settings=Settings().changed(**settings),
    )
    return generate(request, engine, Output(Path()), Silent(), hooks)


def pixels(result: Result) -> bytes:
    return result.samples[0].image.tobytes()


Plain = Callable[[str, str], bytes]
WEIGHTS = "0,0,0,0,0,{},0,0,0,0,0,0"


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Plain:
    """The pixels of a family's image with fp8 as it is said, made once and compared with many times."""
    return cache(lambda family, fp8: pixels(image(engine, family, fp8_storage=fp8)))


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_each_family_makes_an_image_that_follows_the_prompt(engine: Engine, family: str, plain: Plain) -> None:
    first = plain(family, "Disable")
    assert len(set(first)) > 8
    assert first == pixels(image(engine, family))
    assert first != pixels(image(engine, family, "a blue dog"))


@pytest.mark.parametrize(("family", "storage"), STORED)
def test_each_family_is_stored_in_each_format_and_takes_a_lora(
    engine: Engine, family: str, storage: str, plain: Plain
) -> None:
    fp8: dict[str, Any] = {"fp8_storage": "Enable", "fp8_format": storage}
    result = image(engine, family, **fp8)
    facts = engine.status.model
    assert facts is not None and storage in facts.storage.replace(" ", "_")
    assert facts.stored_bytes < 2.5 * facts.parameters
    assert pixels(result) != plain(family, "Disable")
    with_lora = image(engine, family, f"a red cat<lora:{LORA_OF.get(family, 'unet')}:1>", **fp8)
    assert pixels(with_lora) != pixels(result)
    assert pixels(image(engine, family, **fp8)) == pixels(result)


# Its names in each family are held by the stored formats above; here one of each kind of network, by default.
KINDS = ("sd1", "sd2", "sdxl", "sdxl-pruned", "sd3", "sd3.5")


@pytest.mark.parametrize("family", usually(FAMILY_NAMES, lambda family: family in KINDS))
def test_each_family_takes_a_lora_in_16_bit(engine: Engine, family: str, plain: Plain) -> None:
    with_lora = image(engine, family, f"a red cat<lora:{LORA_OF.get(family, 'unet')}:1>")
    assert pixels(with_lora) != plain(family, "Disable")


@pytest.mark.parametrize("storage", ["Disable", "Enable"])
@pytest.mark.parametrize("family", ["sd2", "sdxl", "sd3.5"])
def test_each_family_is_streamed_with_the_same_image(engine: Engine, family: str, storage: str, plain: Plain) -> None:
    streamed = image(engine, family, fp8_storage=storage, stream_weights="Layers")
    facts = engine.status.model
    assert facts is not None and facts.streamed_bytes > 0
    assert pixels(streamed) == plain(family, storage)


def test_enable_for_sdxl_means_sdxl(engine: Engine) -> None:
    assert "FP8" in image(engine, "sdxl", fp8_storage="Enable for SDXL").samples[0].infotext
    assert "FP8" not in image(engine, "sd2", fp8_storage="Enable for SDXL").samples[0].infotext


@pytest.mark.parametrize("lora", ["first", "second", "unet"])
@pytest.mark.parametrize("storage", ["Disable", "Enable"])
def test_adapters_reach_every_part_of_sdxl(engine: Engine, lora: str, storage: str, plain: Plain) -> None:
    with_lora = image(engine, "sdxl", f"a red cat<lora:{lora}:1>", fp8_storage=storage)
    assert pixels(image(engine, "sdxl", fp8_storage=storage)) == plain("sdxl", storage)
    assert pixels(with_lora) != plain("sdxl", storage)


@pytest.mark.parametrize("lora", ["first", "second", "transformer"])
@pytest.mark.parametrize("storage", ["Disable", "Enable"])
def test_adapters_reach_every_part_of_sd3(engine: Engine, lora: str, storage: str, plain: Plain) -> None:
    with_lora = image(engine, "sd3.5", f"a red cat<lora:{lora}:1>", fp8_storage=storage)
    assert pixels(image(engine, "sd3.5", fp8_storage=storage)) == plain("sd3.5", storage)
    assert pixels(with_lora) != plain("sd3.5", storage)


@pytest.mark.parametrize("mode", ["exact", "merge from full precision"])
def test_a_lora_counts_by_blocks(engine: Engine, mode: str, plain: Plain) -> None:
    """The LoRA changes the middle block alone, the sixth of twelve numbers."""
    settings: dict[str, Any] = {"lora_mode": mode}
    whole = pixels(image(engine, "sdxl", "a red cat<lora:unet:1>", **settings))
    only = pixels(image(engine, "sdxl", f"a red cat<lora:unet:1:lbw={WEIGHTS.format(1)}>", **settings))
    half = pixels(image(engine, "sdxl", f"a red cat<lora:unet:1:lbw={WEIGHTS.format(0.5)}>", **settings))
    none = pixels(image(engine, "sdxl", f"a red cat<lora:unet:1:lbw={WEIGHTS.format(0)}>", **settings))
    assert only == whole != half and none == plain("sdxl", "Disable") != half


class Switching(Hooks):
    """Has these LoRAs on the model from the call with this number on."""

    def __init__(self, engine: Engine, call: int, *tags: LoraTag) -> None:
        super().__init__()
        object.__setattr__(self, "how", (engine, call, tags))

    def on_model(self, use: ModelUse) -> None:
        engine, call, tags = vars(self)["how"]

        def switch(inputs: DenoiserInputs) -> None:
            if inputs.step == call:
                engine.adapters.files.put_on(use.model, tags)

        use.before_call.append(switch)


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("exact", {}),
        ("exact", {"fp8_storage": "Enable", "stream_weights": "Layers"}),
        ("merge from full precision", {"stream_weights": "Layers"}),
        ("merge into fp8", {"fp8_storage": "Enable", "fp8_format": "int8_row"}),
    ],
)
def test_a_lora_holds_for_some_steps(engine: Engine, mode: str, settings: dict[str, Any]) -> None:
    """As if its strength were switched by hand; and nothing of it stays on the model."""
    settings = {"lora_mode": mode, **settings}

    def made(tag: str, hooks: Hooks = NO_HOOKS) -> bytes:
        return pixels(image(engine, "sdxl", f"a red cat{tag}", steps=4, hooks=hooks, **settings))

    without, off = ("<lora:unet:1:0>", [LoraTag("unet", 1.0, 0.0)]) if mode == "exact" else ("", [])
    whole, late, early = (made(f"<lora:unet:1{steps}>") for steps in ("", ":start=2", ":stop=2"))
    assert late == made(without, Switching(engine, 2, LoraTag("unet")))
    assert early == made("<lora:unet:1>", Switching(engine, 2, *off))
    assert len({whole, late, early, made(without)}) == 4
    assert made("<lora:unet:1:step=0-9>") == whole


def test_sd3_samples_with_noise_on_the_way_and_once_more_larger(engine: Engine) -> None:
    hires = HiresRequest(scale=2.0, denoising_strength=0.6)
    result = refined(engine, checkpoint="sd3", refiner_checkpoint=None, sampler="Euler a", hires=hires)
    assert result.samples[0].image.size == (128, 128)
    assert "Model: sd3" in result.samples[0].infotext and len(set(pixels(result))) > 8


def test_sd3_refuses_what_it_cannot_do(engine: Engine) -> None:
    with pytest.raises(InvalidValueError, match="predict noise"):
        refined(engine, checkpoint="sd3", refiner_checkpoint=None, sampler="PLMS")
    with pytest.raises(InvalidValueError, match=r"refiner sdxl-refiner\.safetensors .* its latents are others"):
        refined(engine, checkpoint="sd3")


def test_sd3_is_planned(engine: Engine) -> None:
    request = GenerationRequest(prompt="a cat", checkpoint="sd3.5", width=64, height=64)
    plan = MemoryEstimator(engine, CONFIGS).plan(request)
    assert plan.needs_bytes > plan.weights_bytes > 0


def test_sdxl_sees_the_size_and_the_crop(engine: Engine, plain: Plain) -> None:
    assert pixels(image(engine, "sdxl", sdxl_crop_top=512)) != plain("sdxl", "Disable")
    assert pixels(image(engine, "sd2", sdxl_crop_top=512)) == plain("sd2", "Disable")


def test_the_refiner_sees_the_aesthetic_score(engine: Engine, plain: Plain) -> None:
    other = image(engine, "sdxl-refiner", sdxl_refiner_high_aesthetic_score=1.0)
    assert pixels(other) != plain("sdxl-refiner", "Disable")


def test_clip_skip_reaches_sdxl_by_its_own_setting_only(engine: Engine, plain: Plain) -> None:
    assert pixels(image(engine, "sdxl", CLIP_stop_at_last_layers=3)) == plain("sdxl", "Disable")
    skipped = image(engine, "sdxl", CLIP_stop_at_last_layers=3, sdxl_clip_l_skip=True)
    assert pixels(skipped) != plain("sdxl", "Disable")


def test_v_prediction_with_a_noise_schedule_that_ends_in_noise(engine: Engine) -> None:
    model = engine.model("sdxl-v")
    assert model.architecture.prediction_type == "v_prediction"
    assert model.architecture.noise_schedule.zero_terminal_snr


@pytest.mark.parametrize(("family", "prediction"), [("sd2", "epsilon"), ("sd2-v", "v_prediction")])
def test_what_an_adapter_predicts_is_probed_where_the_file_does_not_say(
    engine: Engine, family: str, prediction: str
) -> None:
    model = engine.model(family)
    assert model.architecture.prediction_type == prediction
    assert model.default_size_px == (768 if prediction == "v_prediction" else 512)


def test_a_yaml_says_what_the_probe_would_find_out(engine: Engine, tmp_path: Path, plain: Plain) -> None:
    """The same file with a description in the original form beside it: the same image. Said otherwise, another."""
    write_family(tmp_path, "sd2-v")
    for parameterization in ("v", "eps"):
        write_yaml(tmp_path / "sd2-v.yaml", TINY_FAMILIES["sd2-v"], CONFIGS / "v2-inference.yaml", parameterization)
        other = Engine(CheckpointCatalogue([tmp_path], HashCache(tmp_path / "hashes.json")), CONFIGS, cpu_machine)
        assert other.model("sd2-v").architecture.prediction_type == PREDICTIONS[parameterization]
        assert (pixels(image(other, "sd2-v")) == plain("sd2-v", "Disable")) is (parameterization == "v")


@pytest.mark.parametrize("family", DISTILLED)
def test_a_distilled_model_needs_a_step_and_no_negative_prompt(engine: Engine, family: str) -> None:
    result = refined(engine, checkpoint=family, refiner_checkpoint=None, steps=1, cfg_scale=1.0, sampler="Euler a")
    assert len(set(pixels(result))) > 8
    assert "Steps: 1, Sampler: Euler a" in result.samples[0].infotext


REFINED = {"checkpoint": "sdxl", "refiner_checkpoint": "sdxl-refiner", "refiner_switch_at": 0.5, "steps": 4}
SMALL = {"prompt": "a cat", "width": 64, "height": 64, "seed": 1, "subseed": 0, "sampler": "Euler"}


def refined(engine: Engine, **changes: object) -> Result:
    values = {**SMALL, **REFINED, "save_images": False, **changes}
    return generate(GenerationRequest(**values), engine, Output(Path()), Silent())  # type: ignore[arg-type]


def test_a_refiner_takes_over_and_the_next_batch_begins_with_the_base_model(engine: Engine) -> None:
    base = refined(engine, refiner_checkpoint=None)
    both = refined(engine, batch_count=2)
    alone = refined(engine)
    assert pixels(base) != pixels(alone)
    assert pixels(both) == pixels(alone)
    assert "Refiner: sdxl-refiner [" in alone.samples[0].infotext
    assert "Refiner switch at: 0.5" in alone.samples[0].infotext
    assert "Refiner" not in base.samples[0].infotext


def test_a_refiner_from_the_beginning_is_that_model_alone_and_at_the_end_never(engine: Engine) -> None:
    first = refined(engine, refiner_switch_at=0.0)
    assert pixels(first) == pixels(refined(engine, checkpoint="sdxl-refiner", refiner_checkpoint=None))
    never = refined(engine, refiner_switch_at=1.0)
    assert pixels(never) == pixels(refined(engine, refiner_checkpoint=None))
    assert "Refiner" not in never.samples[0].infotext


def test_a_second_pass_may_have_a_model_of_its_own(engine: Engine) -> None:
    hires = HiresRequest(scale=1.0, upscaler="Lanczos", checkpoint="sdxl-pruned", denoising_strength=0.5)
    result = refined(engine, refiner_checkpoint=None, hires=hires)
    assert "Hires checkpoint: sdxl-pruned [" in result.samples[0].infotext
    same = refined(engine, refiner_checkpoint=None, hires=replace(hires, checkpoint=None))
    assert pixels(result) != pixels(same)
