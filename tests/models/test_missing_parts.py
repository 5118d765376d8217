"""Parts that a model lacks, or that do not fit it, are named in one error, with their size and where they belong."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.models.families.registry import FAMILIES
from modules.models.loading.loaded import LoadedModel
from tests.models.dit_files import recipe_tensors
from tests.models.split_models import SPLIT_FAMILIES, save, split_model
from tests.models.test_gguf_files import load

LATENTS = re.compile(r"decoder\.(conv_in|conv1)\.weight$")
TOKENS = re.compile(r"(embed_tokens|shared|token_embedding)\.weight$")
VAE_PLACE, TEXT_PLACE = "models/VAE", "models/text_encoder"


def hints(family: str) -> list[str]:
    """What is to be said of each part of a family."""
    known = FAMILIES.get(family)
    assert known.latents.external is not None
    return [*(item.title for item in known.texts.external), known.latents.external.need.title]


def widened(text: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A text encoder whose tokens are twice as wide."""
    return {key: torch.cat([tensor] * 2, dim=1) if TOKENS.search(key) else tensor for key, tensor in text.items()}


def narrowed(vae: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A VAE whose latents have four channels."""
    return {key: tensor[:, :4] if LATENTS.search(key) else tensor for key, tensor in vae.items()}


def said(path: Path, *modules: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        load(path, modules)
    return str(refused.value)


@pytest.mark.parametrize("family", SPLIT_FAMILIES)
def test_a_denoiser_alone_names_all_its_parts(family: str, tmp_path: Path) -> None:
    path = save(tmp_path / "Stable-diffusion" / "alone.safetensors", split_model(family).denoiser)
    found = said(path)
    assert found.startswith("alone.safetensors: ") and TEXT_PLACE in found and VAE_PLACE in found
    assert [hint for hint in hints(family) if hint not in found] == []


@pytest.mark.parametrize("family", SPLIT_FAMILIES)
def test_a_text_encoder_of_another_width_and_a_vae_of_other_latents_are_named_together(
    family: str, tmp_path: Path
) -> None:
    model = split_model(family)
    path = save(tmp_path / "Stable-diffusion" / "model.safetensors", model.denoiser)
    texts = [
        save(tmp_path / "other" / f"{name}.safetensors", widened(tensors)) for name, (_, tensors) in model.texts.items()
    ]
    vae = save(tmp_path / "other" / "small_vae.safetensors", narrowed(model.vae))
    found = said(path, *texts, vae)
    for text in texts:
        assert re.search(rf"its text encoder {re.escape(text.name)} is \d+ wide, and the model takes", found), found
    assert "its VAE small_vae.safetensors has latents of 4 channels, and the model takes" in found
    assert [hint for hint in hints(family) if hint not in found] == []


@pytest.mark.parametrize("family", SPLIT_FAMILIES)
def test_a_file_without_a_place_is_named_with_what_is_missing(family: str, tmp_path: Path) -> None:
    model = split_model(family)
    path = save(tmp_path / "Stable-diffusion" / "model.safetensors", model.denoiser)
    is_t5 = any("t5" in name for name in model.texts)
    foreign = "qwen3_4b_tiny" if is_t5 else "t5xxl_tiny"
    other = save(tmp_path / "other.safetensors", recipe_tensors(foreign))
    found = said(path, other)
    what = "a language model (Qwen3), 64 wide" if is_t5 else "T5, 64 wide"
    of_model = f"model.safetensors ({FAMILIES.get(family).label})"
    said_of_it = (
        f"other.safetensors: is no VAE, and no text encoder that {of_model} has a place for: it is {what}. Take it out "
        "of the list of modules."
    )
    assert said_of_it in found
    assert [hint for hint in hints(family) if hint not in found] == []


def test_two_vaes_are_refused(tmp_path: Path) -> None:
    model = split_model("z_image")
    path = model.write(tmp_path)
    vaes = [save(tmp_path / f"{name}.safetensors", model.vae) for name in ("one", "two")]
    assert "two VAEs were chosen for it, one.safetensors and two.safetensors" in said(path, *vaes)


def test_all_parts_make_a_model(tmp_path: Path) -> None:
    for family in SPLIT_FAMILIES:
        model = load(split_model(family).write(tmp_path / family))
        assert isinstance(model, LoadedModel) and all(torch.isfinite(p).all() for p in model.vae.parameters())
