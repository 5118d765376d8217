"""Z-Image's files: every layout maps completely, and the numbers are those of the original code."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from modules.errors import CheckpointError
from modules.models.families.architecture import read_architecture
from modules.models.families.registry import FAMILIES, all_families, detect_family
from modules.models.loading.matching import assign_tensors
from modules.models.names.component import Header
from modules.models.names.fused import unfused
from modules.models.opening.checkpoint import open_checkpoint
from tests.models.dit_files import (
    HeaderOnly,
    full_header,
    recipe_tensors,
    write_recipe,
    write_split,
    write_whole,
)
from tests.recordings import CONFIGS

CASE = "zimage-turbo-cfg1"
DENOISER, TEXT = "model.diffusion_model.", "text_encoders.qwen3_4b.transformer."
FAMILY = FAMILIES.get("z_image")


def full(denoiser: str = "z-image") -> Header:
    return {
        **full_header(denoiser, DENOISER),
        **full_header("te-qwen3-4b", TEXT),
        **full_header("vae-flux1", "first_stage_model."),
    }


def test_the_full_models_tensors_all_have_a_place() -> None:
    file = unfused(HeaderOnly(full()), all_families())
    assert detect_family(file) is FAMILY
    architecture = read_architecture(CONFIGS / FAMILY.config_name)
    components = FAMILY.components(file.entries, architecture, ())
    found = assign_tensors(file, components, FAMILY.is_ignored)
    unused = [key for key in file.entries if key.startswith(f"{TEXT}model.layers.35.")]
    assert len(found) == len(file.entries) - len(unused) - 1  # the final norm
    transformer: Any = next(item.module for item in components if item.name == "unet")
    assert len(transformer.layers) == 30 and transformer.config.n_heads == 30


def test_names_of_the_folder_are_those_of_the_file() -> None:
    keymap, ours = FAMILY.folder.names["transformer"](full_header("z-image.diffusers"))
    folder = {str(keymap.to_original(name)) for name in ours.values()}
    whole = unfused(HeaderOnly(full_header("z-image", DENOISER)), all_families())
    assert folder == set(whole.entries)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("split")
    write_split(root, CASE)
    return root


def test_all_layouts_hold_the_same(split: Path, tmp_path: Path) -> None:
    whole = write_whole(tmp_path, CASE)
    fused = recipe_tensors("z_image_tiny")
    apart = {key: tensor for key, tensor in fused.items() if ".qkv." not in key}
    for key in fused.keys() - apart.keys():
        for name, part in zip(("to_q", "to_k", "to_v"), fused[key].chunk(3), strict=True):
            apart[key.replace("qkv", name)] = part.contiguous()
    path = split / "Stable-diffusion" / "apart" / "apart.safetensors"
    path.parent.mkdir()
    save_file(apart, path)
    with (
        open_checkpoint(split / "Stable-diffusion" / "z_image_tiny.safetensors") as first,
        open_checkpoint(whole) as second,
        open_checkpoint(path) as third,
    ):
        assert first.entries.keys() == second.entries.keys()
        assert all(torch.equal(first.read(key), second.read(key)) for key in first.entries)
        row = f"{DENOISER}layers.0.attention.qkv.rows_256_512.weight"
        assert torch.equal(first.read(row), third.read(f"{DENOISER}layers.0.attention.to_k.weight"))
        maps = [FAMILY.row_map_of(file.entries) for file in (first, third)]
        assert maps[0] is not None and maps[1] is not None and maps[0].sources.keys() == maps[1].sources.keys()


def test_a_missing_text_encoder_is_named_with_its_size_and_place(tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "Stable-diffusion" / "z.safetensors", "z_image_tiny")
    with pytest.raises(CheckpointError, match=r"no text encoder.*Qwen3-4B \(2560 wide, 8\.0 GB.*models/text_encoder"):
        components_of(path)


def test_an_encoder_of_another_width_is_named(tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "Stable-diffusion" / "z.safetensors", "z_image_tiny")
    tensors = {
        key: torch.cat([tensor] * 2, dim=-1) if key.endswith("embed_tokens.weight") else tensor
        for key, tensor in recipe_tensors("qwen3_4b_tiny").items()
    }
    save_file(tensors, tmp_path / "wide.safetensors")
    with pytest.raises(CheckpointError, match=r"wide\.safetensors is 128 wide, and the model takes tokens of 64"):
        components_of(path, tmp_path / "wide.safetensors")


def test_a_vae_of_other_latents_is_named(split: Path, tmp_path: Path) -> None:
    tensors = recipe_tensors("flux_ae_tiny")
    tensors["decoder.conv_in.weight"] = tensors["decoder.conv_in.weight"][:, :4].contiguous()
    save_file(tensors, tmp_path / "four.safetensors")
    with pytest.raises(CheckpointError, match=r"four\.safetensors has latents of 4 channels, and the model takes 16"):
        components_of(split / "Stable-diffusion" / "z_image_tiny.safetensors", tmp_path / "four.safetensors")


def test_a_missing_vae_is_named_with_its_place(split: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "Stable-diffusion" / "z.safetensors", "z_image_tiny")
    with open_checkpoint(path, modules=[split / "text_encoder" / "qwen3_4b_tiny.safetensors"]) as file:
        components = FAMILY.components(file.entries, read_architecture(CONFIGS / FAMILY.config_name), ())
        with pytest.raises(CheckpointError, match=r"no vae found.*VAE of FLUX\.1 \(ae\.safetensors.*models/VAE"):
            assign_tensors(file, components, FAMILY.is_ignored)


def components_of(path: Path, *modules: Path) -> None:
    with open_checkpoint(path, modules=modules) as file:
        FAMILY.components(file.entries, read_architecture(CONFIGS / FAMILY.config_name), ())
