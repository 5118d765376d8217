"""Which settings a pasted infotext asks for."""

import json
from pathlib import Path
from typing import Any

import pytest

from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.settings.values import Settings

REFERENCE = Path(__file__).parents[1] / "reference"
PARTS: dict[str, Any] = json.loads((REFERENCE / "parts.json").read_text(encoding="utf-8"))
HEAD = "a\nSteps: 1, Sampler: Euler, Seed: 2"


@pytest.mark.parametrize("case", PARTS["infotext_override_settings"], ids=lambda case: case["text"][:40])
def test_as_recorded(case: dict[str, Any]) -> None:
    assert list(override_settings_from(parse_infotext(case["text"]), Settings())) == case["result"]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("Clip skip: 2", {"CLIP_stop_at_last_layers": 2}),
        ("ENSD: 31337", {"eta_noise_seed_delta": 31337}),
        ("Eta: 0.5", {"eta_ancestral": 0.5}),
        ("RNG: NV", {"randn_source": "NV"}),
        ("Tiling: True", {"tiling": True}),
        ("NGMS: 2.0", {"s_min_uncond": 2.0}),
        ("Beta schedule alpha: 0.7", {"beta_dist_alpha": 0.7}),
        ("Beta scheduler beta: 0.7", {"beta_dist_beta": 0.7}),
        ("FP8 weight: Enable", {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn"}),
        (
            "FP8 weight: Enable, Cache FP16 weight for LoRA: True",
            {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn", "cache_fp16_weight": True},
        ),
        ("VAE: v.pt", {"sd_vae": "v.pt"}),
        ("Model hash: 12345", {}),
        ("Version: v1.6.0", {"use_downcasted_alpha_bar": True}),
    ],
)
def test_fields_become_settings(field: str, expected: dict[str, object]) -> None:
    assert override_settings_from(parse_infotext(f"{HEAD}, {field}"), Settings()) == expected


def test_a_missing_field_asks_for_its_default() -> None:
    current = Settings().changed(randn_source="CPU", fp8_storage="Enable", CLIP_stop_at_last_layers=2)
    assert override_settings_from(parse_infotext(HEAD), current) == {
        "randn_source": "GPU",
        "fp8_storage": "Disable",
        "CLIP_stop_at_last_layers": 1,
    }


def test_a_text_that_says_nothing_of_precision_was_made_in_16_bits() -> None:
    current = Settings().changed(
        fp8_storage="Enable", compute_dtype="bf16", compute_mode="Autocast", lora_mode="merge into fp8"
    )
    assert override_settings_from(parse_infotext(HEAD), current) == {
        "fp8_storage": "Disable",
        "compute_dtype": "Automatic",
        "compute_mode": "Automatic",
        "lora_mode": "Automatic",
    }


@pytest.mark.parametrize(
    ("prompt", "fields", "mode"),
    [
        ("a <lora:b:1>", "FP8 weight: Enable", "merge into fp8"),
        ("a <lyco:b:1>", "FP8 weight: Enable for SDXL", "merge into fp8"),
        ("a", "FP8 weight: Enable, Hires prompt: <lora:b:1>", "merge into fp8"),
        ("a", 'FP8 weight: Enable, Lora hashes: "b: 123"', "merge into fp8"),
        ("a <lora:b:1>", "FP8 weight: Enable, Cache FP16 weight for LoRA: True", "merge from full precision"),
        ("a <lora:b:1>", "FP8 weight: Enable, LoRA mode: exact", "exact"),
        ("a <lora:b:1>", "FP8 weight: Enable, FP8 format: int8_row", "Automatic"),
        ("a", "FP8 weight: Enable", "Automatic"),
        ("a <lora:b:1>", "Clip skip: 2", "Automatic"),
    ],
)
def test_a_lora_on_the_reference_uis_fp8_is_merged_as_there(prompt: str, fields: str, mode: str) -> None:
    text = f"{prompt}\nSteps: 1, Sampler: Euler, Seed: 2, {fields}"
    current = Settings().changed(lora_mode="merge into fp8, stochastic")
    assert override_settings_from(parse_infotext(text), current)["lora_mode"] == mode


def test_the_checkpoint_is_asked_for_when_wanted() -> None:
    current = Settings().changed(disable_weights_auto_swap=False)
    parsed = parse_infotext(f"{HEAD}, Model hash: 12345")
    assert override_settings_from(parsed, current) == {"sd_model_checkpoint": "12345"}


def test_junk_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    parsed = parse_infotext(f"{HEAD}, Clip skip: lots, RNG: dice, Eta: 0.5")
    assert override_settings_from(parsed, Settings()) == {"eta_ancestral": 0.5}
    assert "Clip skip" in caplog.text
    assert "RNG" in caplog.text


@pytest.mark.parametrize("current", [Settings(), Settings().changed(tiling=True, s_churn=3, rho=7)])
def test_applying_the_overrides_leaves_nothing_to_override(current: Settings) -> None:
    parsed = parse_infotext(f"{HEAD}, Eta: 0.25, Sigma churn: 0.5, Schedule rho: 5, Noise Schedule: Zero Terminal SNR")
    changed = current.with_changes(override_settings_from(parsed, current))
    assert override_settings_from(parsed, changed) == {}
