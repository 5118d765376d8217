"""Files for few steps are known by their names; what they ask for is a sampler and schedule type that there is."""

from pathlib import Path

import pytest

from modules.model_cards.few_steps import FewSteps, adapter_few_steps, checkpoint_few_steps, few_steps_json
from modules.sampling.catalog import SAMPLERS, SCHEDULES


def adapter(name: str, **metadata: str) -> FewSteps | None:
    return adapter_few_steps(Path("Lora") / f"{name}.safetensors", metadata)


@pytest.mark.parametrize(
    ("name", "method", "steps", "cfg_scale"),
    [
        ("lcm-lora-sdv1-5", "LCM", 6, 1.0),
        ("lcm-lora-sdxl/pytorch_lora_weights", "LCM", 6, 1.0),
        ("sdxl_lightning_4step_lora", "Lightning", 4, 1.0),
        ("sdxl_lightning_8step", "Lightning", 8, 1.0),
        ("Hyper-SD15-2steps-lora", "Hyper-SD", 2, 1.0),
        ("Hyper-SDXL-8steps-CFG-lora", "Hyper-SD", 8, 5.0),
        ("dmd2_sdxl_4step_lora_fp16", "DMD2", 4, 1.0),
        ("sd_xl_turbo_lora_v1", "Turbo", 4, 1.0),
    ],
)
def test_adapters_for_few_steps(name: str, method: str, steps: int, cfg_scale: float) -> None:
    found = adapter(name)
    assert found is not None and (found.method, found.steps, found.cfg_scale) == (method, steps, cfg_scale)
    assert found.sampler in SAMPLERS and found.scheduler in {spec.label for _, spec in SCHEDULES.items()}


@pytest.mark.parametrize(
    "name", ["lightning strike", "turbo car", "hyper detailed", "Hyper_Realistic", "falcman", "XLmoreArtFull", ""]
)
def test_styles_with_such_words_are_none(name: str) -> None:
    assert adapter(name) is None


def test_an_adapter_is_known_by_its_own_titles_but_not_by_what_it_was_trained_on() -> None:
    assert adapter("downloaded", ss_output_name="sdxl-lightning-2step") == FewSteps(
        "Lightning", 2, 1.0, "Euler", "SGM Uniform", "taesdxl"
    )
    assert adapter("downloaded", **{"modelspec.title": "LCM LoRA"}) is not None
    assert adapter("style", ss_sd_model_name="sd_xl_turbo_1.0.safetensors") is None


@pytest.mark.parametrize(
    ("name", "method", "sampler"),
    [
        ("sd_xl_turbo_1.0_fp16", "Turbo", "Euler a"),
        ("someXL_v21TurboDPMSDE", "Turbo", "Euler a"),
        ("juggernautXL_v9Rdphoto2Lightning", "Lightning", "Euler"),
        ("realisticVisionV60B1_v51HyperVAE", "Hyper-SD", "Euler"),
        ("LCM_Dreamshaper_v7", "LCM", "LCM"),
        ("sd3.5_large_turbo", "Turbo", "Euler"),
    ],
)
def test_checkpoints_for_few_steps(name: str, method: str, sampler: str) -> None:
    found = checkpoint_few_steps(name)
    assert found is not None and (found.method, found.sampler) == (method, sampler)


@pytest.mark.parametrize("name", ["v1-5-pruned", "hyperRealistic_v1", "turbovision", "featherweight-scenes"])
def test_other_checkpoints_are_none(name: str) -> None:
    assert checkpoint_few_steps(name) is None


@pytest.mark.parametrize(
    ("name", "steps"),
    [("sd_turbo", 1), ("sd_xl_turbo_1.0_fp16", 1), ("sd_xl_turbo_1.0", 1), ("someXL_turbo", 4), ("sd_turbo_4steps", 4)],
)
def test_the_first_turbo_models_need_one_step(name: str, steps: int) -> None:
    found = checkpoint_few_steps(name)
    assert found is not None and found.steps == steps


@pytest.mark.parametrize(
    ("name", "tiny"),
    [
        ("Hyper-SD15-1step-lora", "taesd"),
        ("dmd2_sdxl_4step_lora_fp16", "taesdxl"),
        ("lcm-lora-sdv1-5", "taesd"),
        ("Hyper-FLUX.1-dev-8steps-lora", ""),
    ],
)
def test_the_tiny_decoder_is_asked_for_where_it_is_here(name: str, tiny: str) -> None:
    found = adapter(name)
    assert found is not None and found.tiny_vae == tiny
    absent, present = few_steps_json(found), few_steps_json(found, ["taesd", "taesdxl"])
    assert absent is not None and absent["decoder"] == "" and "TAESD" not in str(absent["values"])
    assert present is not None and present["decoder"] == ("TAESD" if tiny else "")
    assert str(present["values"]).endswith(", TAESD") is bool(tiny)


def test_a_reply_says_what_a_card_shows() -> None:
    assert few_steps_json(None) is None
    found = few_steps_json(checkpoint_few_steps("sdxl_lightning_2step"))
    assert found is not None and found["label"] == "Lightning: 2 steps"
    assert found["values"] == "2 steps, CFG scale 1, Euler, SGM Uniform"
