"""Adapters on 8-bit weights: as the reference UI where that is asked for, and with their full effect by default."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modules.adapters.adapter_facts import AdapterError
from modules.adapters.applying import LoraMode
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.memory.changes import changed_bias, changed_weight
from modules.memory.layer import stored_state, unmanage
from modules.processing.engine.engine import Engine
from modules.settings.values import Settings
from tests.extensions import adapters_of
from tests.processing.recorded import levels_apart
from tests.processing.test_fp8_images import AS_THE_REFERENCE, FP8, SHORT, make, pixels
from tests.recordings import tiny_engine
from tests.thorough import thoroughly

INTO_FP8 = {**AS_THE_REFERENCE, "lora_mode": "merge into fp8"}
FROM_FULL_PRECISION = {**AS_THE_REFERENCE, "lora_mode": "merge from full precision"}
ROW = {"fp8_storage": "Enable"}
PROMPT = "a red cat on a chair"


def with_prompt(prompt: str) -> dict[str, Any]:
    return {**SHORT, "prompt": prompt}


def assert_same_bits(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
    assert set(before) == set(after)
    for name, tensor in before.items():
        assert torch.equal(tensor.contiguous().view(torch.uint8), after[name].contiguous().view(torch.uint8)), name


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fp8-lora", INTO_FP8),
        thoroughly("fp8-loha", INTO_FP8),  # its form is held by `test_recorded_images.py`
        thoroughly("fp8cache-lora", {**FROM_FULL_PRECISION, "cache_fp16_weight": True}),  # as DoRA's, by less
        ("fp8cache-dora", {**FROM_FULL_PRECISION, "cache_fp16_weight": True}),
    ],
)
def test_adapters_on_plain_fp8_as_the_reference(
    name: str, settings: dict[str, Any], engine: Engine, tmp_path: Path
) -> None:
    case = FP8[name]
    autocast = make(engine, tmp_path, case["payload"], settings)
    manual = make(engine, tmp_path, case["payload"], {**settings, "compute_mode": "Manual cast"})
    two_runs = np.abs(pixels(autocast) - pixels(manual)).mean()
    apart = levels_apart(autocast.samples[0].image, case["file"]).mean()
    assert apart <= 1.9 * two_runs
    assert apart < 0.8 * case["compared"]["mean_abs_pixel"]  # 0.6 to 0.75, by the CPU that repeats it


# Adapters add to the decoded weight, whatever it is decoded from: each kind on one format, and DoRA, which divides by
# the weight's norms, on each.
ADAPTERS = ("tiny-lora-a", "tiny-locon", "tiny-loha", "tiny-lokr", "tiny-full", "tiny-dora")
STORAGES = ("fp8_e4m3fn", "fp8_e4m3fn_row", "code4")


@pytest.mark.parametrize(
    ("storage", "adapter"),
    [
        (storage, adapter) if storage == "fp8_e4m3fn_row" or adapter == "tiny-dora" else thoroughly(storage, adapter)
        for storage in STORAGES
        for adapter in ADAPTERS
    ],
)
def test_exact_has_the_effect_of_the_delta_in_fp32(
    adapter: str, storage: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image is that of the same stored base with the delta added in float32 to its decoded weights."""
    settings = {"fp8_storage": "Enable", "fp8_format": storage}
    exact = make(engine, tmp_path, with_prompt(f"{PROMPT} <lora:{adapter}:0.8>"), settings)
    model = engine._model
    assert model is not None
    applier = model.adapters
    assert applier.retention.retention == 1.0
    uses, files = applier.uses, engine.adapters.files._files
    applier.remove()
    for target, changes in applier._plan(uses, files).values():
        if stored_state(target.layer) is not None:
            unmanage(target.layer)
        with torch.no_grad():
            weight = target.layer._parameters["weight"]
            weight.copy_(changed_weight(weight.data, changes))
            bias = target.layer._parameters.get("bias")
            if bias is not None:
                bias.copy_(changed_bias(bias.data, changes))
    conditioner = engine._conditioner
    assert conditioner is not None
    conditioner.clear()
    monkeypatch.setattr(engine.adapters, "activate", lambda *_: type(conditioner.adapters)(uses=(), mode="by hand"))
    by_hand = make(engine, tmp_path, with_prompt(f"{PROMPT} <lora:{adapter}:0.8>"), settings)
    engine.unload()
    assert np.abs(pixels(exact) - pixels(by_hand)).max() <= 1


BASES: dict[str, dict[str, Any]] = {"16": {}, "row": ROW, "plain": {**ROW, "fp8_format": "fp8_e4m3fn"}}


# Every mode on rows with scales, which have the most parameters; on the others the exact mode and one that rounds.
@pytest.mark.parametrize(
    ("base", "mode"),
    [
        (base, mode.value)
        if base == "row" or (base, mode.value) in (("16", "exact"), ("plain", "merge into fp8"))
        else thoroughly(base, mode.value)
        for base in BASES
        for mode in LoraMode
    ],
)
def test_removing_the_tag_removes_every_trace(base: str, mode: str, engine: Engine, tmp_path: Path) -> None:
    settings = {**BASES[base], "lora_mode": mode}
    first = make(engine, tmp_path, with_prompt(PROMPT), settings)
    before = weights_of_loaded(engine)
    changed = make(engine, tmp_path, with_prompt(f"{PROMPT} <lora:tiny-locon:1><lora:tiny-dora:0.5>"), settings)
    again = make(engine, tmp_path, with_prompt(PROMPT), settings)
    assert not (pixels(first) == pixels(changed)).all()
    assert (pixels(first) == pixels(again)).all()
    assert_same_bits(before, weights_of_loaded(engine))


def weights_of_loaded(engine: Engine) -> dict[str, torch.Tensor]:
    model = engine._model
    assert model is not None
    return {
        f"{index}.{name}": tensor.clone()
        for index, part in enumerate(model.modules)
        for name, tensor in part.state_dict().items()
    }


def test_two_adapters_on_fp8_with_the_cache_give_the_sum_of_both(engine: Engine, tmp_path: Path) -> None:
    """The reference UI starts each network from the cached weight again: only the last one takes effect."""
    settings = {**ROW, "lora_mode": "merge from full precision", "cache_fp16_weight": True}
    prompt = f"{PROMPT} <lora:tiny-lora-a:0.7><lora:tiny-lora-noalpha:0.4>"
    make(engine, tmp_path, {**with_prompt(prompt), "steps": 1}, settings)
    model = engine._model
    assert model is not None
    assert model.adapters.retention.retention > 0.98  # of the sum of both
    assert model.adapters._kept  # the cache: the touched layers' masters, and only those
    assert len(model.adapters._kept) < len(model.sources)


@pytest.mark.parametrize("mode", ["exact", "merge from full precision"])
def test_a_faint_adapter_arrives_whole(mode: str, engine: Engine, tmp_path: Path) -> None:
    make(engine, tmp_path, with_prompt(f"{PROMPT} <lora:tiny-lora-a:0.02>"), {**ROW, "lora_mode": mode})
    model = engine._model
    assert model is not None
    assert model.adapters.retention.retention > 0.97


def test_merging_into_fp8_loses_a_faint_adapter_and_says_so(engine: Engine, tmp_path: Path) -> None:
    settings = {**ROW, "lora_mode": "merge into fp8"}
    result = make(engine, tmp_path, with_prompt(f"{PROMPT} <lora:tiny-lora-a:0.02>"), settings)
    model = engine._model
    assert model is not None
    assert model.adapters.retention.retention < 0.5
    assert any("kept after rounding" in notice for notice in result.notices)
    assert result.adapter_retention is not None
    assert result.adapter_retention["retention"] < 0.5
    assert len(result.adapter_retention["worst"]) == 3
    stochastic = {**ROW, "lora_mode": "merge into fp8, stochastic"}
    one = make(engine, tmp_path, with_prompt(f"{PROMPT} <lora:tiny-lora-a:0.02>"), stochastic)
    assert model.adapters.retention.retention > 0.9
    make(engine, tmp_path, with_prompt(PROMPT), stochastic)
    two = make(engine, tmp_path, with_prompt(f"{PROMPT} <lora:tiny-lora-a:0.02>"), stochastic)
    assert (pixels(one) == pixels(two)).all()


def test_the_infotext_restores_adapters_and_mode(engine: Engine, tmp_path: Path) -> None:
    first = make(
        engine, tmp_path, with_prompt(f"{PROMPT} <lora:tiny_alias_a:0.8>"), {**ROW, "lora_mode": "merge into fp8"}
    )
    text = first.samples[0].infotext
    assert 'Lora hashes: "tiny_alias_a: 72df6da37eb7"' in text
    assert "LoRA mode: merge into fp8" in text
    overrides = override_settings_from(parse_infotext(text), Settings())
    again = make(engine, tmp_path, with_prompt(f"{PROMPT} <lora:tiny_alias_a:0.8>"), dict(overrides))
    assert (pixels(first) == pixels(again)).all()


def test_what_cannot_be_found_or_read_is_left_out_with_a_sentence(engine: Engine, tmp_path: Path) -> None:
    plain = make(engine, tmp_path, with_prompt(PROMPT), {})
    odd = make(
        engine,
        tmp_path,
        with_prompt(f"{PROMPT}<lora:../../secret:1><lora:tiny-lora-a:lots><lora:tiny-lora-a:1:1:-3><nonsense:x>"),
        {},
    )
    assert (pixels(plain) == pixels(odd)).all()
    said = " ".join(odd.notices)
    assert "'../../secret' was not found" in said
    assert "'lots' is no number" in said
    assert "'-3' is no whole number" in said
    assert "<nonsense:...>" in said


@pytest.mark.parametrize("adapters", ["tiny-locon", "tiny-loha", "tiny-full", "tiny-lora-a:1><lora:tiny-dora"])
def test_another_strength_is_that_of_a_fresh_start(adapters: str, engine: Engine, tmp_path: Path) -> None:
    prompt = with_prompt(f"{PROMPT} <lora:{adapters}:0.3>")
    make(engine, tmp_path, with_prompt(f"{PROMPT} <lora:{adapters}:1>"), ROW)
    changed = make(engine, tmp_path, prompt, ROW)
    engine.unload()
    fresh = make(engine, tmp_path, prompt, ROW)
    assert (pixels(changed) == pixels(fresh)).all()


def test_three_hundred_adapters(engine: Engine, tmp_path: Path) -> None:
    many = "".join(f"<lora:tiny-lora-a:{0.001 * (1 + number % 3)}>" for number in range(300))
    result = make(engine, tmp_path, {**with_prompt(PROMPT + many), "steps": 2}, ROW)
    assert len(result.samples) == 1


def test_an_adapter_for_another_family_is_refused_in_a_sentence(engine: Engine, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "Lora"
    folder.mkdir()
    name = "lora_unet_input_blocks_8_1_transformer_blocks_9_attn1_to_k"
    factors = {f"{name}.lora_down.weight": torch.ones(4, 1280), f"{name}.lora_up.weight": torch.ones(1280, 4)}
    save_file(factors, folder / "sdxl style.safetensors")
    other = tiny_engine(tmp_path)
    other.adapters = adapters_of(folder)
    with pytest.raises(AdapterError, match="another kind of model"):
        make(other, tmp_path, with_prompt(f"{PROMPT} <lora:sdxl style:1>"), {})
    assert make(other, tmp_path, with_prompt(PROMPT), {}).samples
