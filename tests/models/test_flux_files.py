"""Files of FLUX.1, FLUX.2 klein and Chroma: every tensor of the full models has its place in both layouts, adapters of
all names reach their layers, and what is missing or does not fit is named."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.adapters.adapter_file import split_key
from modules.adapters.targets import TargetTable
from modules.errors import CheckpointError
from modules.models.families.architecture import read_architecture
from modules.models.families.family import ModelFamily
from modules.models.families.registry import FAMILIES, all_families, detect_family
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading.load_model import load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.matching import assign_tensors
from modules.models.loading.precision import PrecisionPlan
from modules.models.names.component import Component, Header
from modules.models.names.fused import unfused
from modules.models.opening.checkpoint import open_checkpoint
from tests.models.dit_files import HeaderOnly, full_header, recipe_tensors
from tests.models.dit_models import TINY, write_in_one, write_parts
from tests.recordings import CONFIGS

DENOISER = "model.diffusion_model."
T5, CLIP = "text_encoders.t5xxl.transformer.", "text_encoders.clip_l.transformer."
QWEN = "text_encoders.qwen3_4b.transformer."
FULL = {
    "flux1-dev": ("flux1_dev", {"te-t5xxl": T5, "te-clip-l": CLIP}, "vae-flux1"),
    "flux1-schnell": ("flux1_schnell", {"te-t5xxl": T5, "te-clip-l": CLIP}, "vae-flux1"),
    "flux1-fill-dev": ("flux1_dev", {"te-t5xxl": T5, "te-clip-l": CLIP}, "vae-flux1"),
    "flux2-klein-4b": ("flux2_klein", {"te-qwen3-4b": QWEN}, "vae-flux2"),
    "flux2-klein-9b": ("flux2_klein", {"te-qwen3-8b": QWEN}, "vae-flux2"),
    "chroma1": ("chroma1", {"te-t5xxl": T5}, "vae-flux1"),
}


def full(name: str) -> Header:
    _, encoders, vae = FULL[name]
    texts = {key: entry for recipe, prefix in encoders.items() for key, entry in full_header(recipe, prefix).items()}
    return {**full_header(name, DENOISER), **texts, **full_header(vae, "first_stage_model.")}


def components_of(family: ModelFamily, file: Any) -> tuple[Component, ...]:
    architecture = read_architecture(CONFIGS / family.config_name)
    return tuple(family.components(file.entries, architecture, ()))


@pytest.mark.parametrize("name", FULL)
def test_the_full_models_tensors_all_have_a_place(name: str) -> None:
    file = unfused(HeaderOnly(full(name)), all_families())
    family = detect_family(file)
    assert family is FAMILIES.get(FULL[name][0])
    components = components_of(family, file)
    found = assign_tensors(file, components, family.is_ignored)
    assert {item.component.name for item in found} >= {"unet", "vae", "text_encoder"}
    transformer = [item for item in found if item.component.name == "unet"]
    names = [key for key in file.entries if key.startswith(DENOISER)]
    assert len(transformer) == len(names)


@pytest.mark.parametrize("name", FULL)
def test_names_of_the_folder_are_those_of_the_file(name: str) -> None:
    family = FAMILIES.get(FULL[name][0])
    header = full_header(f"{name}.diffusers")
    assert family.signs.in_folder({"transformer": header})
    others = [other for _, other in FAMILIES.items() if other is not family]
    assert not any(other.signs.in_folder({"transformer": header}) for other in others if other.signs.part != "unet")
    keymap, ours = family.folder.names["transformer"](header)
    folder = {str(keymap.to_original(key)) for key in ours.values()}
    whole = unfused(HeaderOnly(full_header(name, DENOISER)), all_families())
    assert folder == set(whole.entries)
    shapes = {str(keymap.to_original(key)): header[key].shape for key in header}
    assert shapes == {key: entry.shape for key, entry in whole.entries.items()}


LAYERS = {
    "dev": [
        ("double_blocks.0.img_attn.qkv", ["transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.to_k"]),
        ("double_blocks.1.txt_mlp.0", ["transformer_blocks.1.ff_context.net.0.proj"]),
        ("single_blocks.1.linear1", ["single_transformer_blocks.1.attn.to_q", "single_transformer_blocks.1.proj_mlp"]),
        ("single_blocks.0.linear2", ["single_transformer_blocks.0.proj_out"]),
        ("final_layer.adaLN_modulation.1", ["norm_out.linear"]),
    ],
    "klein": [
        ("double_blocks.0.txt_attn.qkv", ["transformer_blocks.0.attn.add_q_proj"]),
        ("single_blocks.1.linear1", ["single_transformer_blocks.1.attn.to_qkv_mlp_proj"]),
        ("double_stream_modulation_img.lin", ["double_stream_modulation_img.linear"]),
    ],
    "chroma": [
        ("double_blocks.0.img_attn.proj", ["transformer_blocks.0.attn.to_out.0"]),
        ("distilled_guidance_layer.layers.1.in_layer", ["distilled_guidance_layer.layers.1.linear_1"]),
    ],
}


@pytest.mark.parametrize("name", LAYERS)
def test_adapters_of_all_names_reach_their_layers(name: str, tmp_path: Path) -> None:
    path = write_parts(tmp_path, TINY[name])
    with open_checkpoint(path) as file:
        components = components_of(detect_family(file), file)
    table = TargetTable({item.name: (item.module, item.keymap.to_original) for item in components})
    for original, ours in LAYERS[name]:
        dashed = original.replace(".", "_")
        names = [
            *(f"lora_unet_{dashed}", f"lycoris_{dashed}", original, f"diffusion_model.{original}"),
            *(f"base_model.model.{original}", f"transformer.{original}" if "blocks" in original else original),
        ]
        for alias in names:
            target = table.find(alias)
            paths = [part.target.path for part in table.parts(alias)] or ([target.path] if target else [])
            assert set(ours) <= set(paths), alias
        for layer in ours:
            flat = layer.replace(".", "_")
            for alias in (f"transformer.{layer}", f"lora_transformer_{flat}", f"lora_unet_{flat}", f"lycoris_{flat}"):
                target = table.find(alias)
                assert target is not None and target.path == layer, alias


def test_the_name_of_an_adapter_between_is_read() -> None:
    layer, end = split_key("diffusion_model.single_blocks.0.linear1.lora_A.default.weight")
    assert (layer, end) == ("diffusion_model.single_blocks.0.linear1", "lora_A.weight")


def test_missing_parts_are_named_with_size_and_place(tmp_path: Path) -> None:
    path = write_parts(tmp_path / "a", TINY["dev"])
    (tmp_path / "a" / "text_encoder" / "t5xxl_tiny.safetensors").unlink()
    with (
        open_checkpoint(path) as file,
        pytest.raises(CheckpointError, match=r"T5-XXL \(4096 wide, 9\.8 GB.*models/text_encoder"),
    ):
        components_of(detect_family(file), file)
    path = write_parts(tmp_path / "b", TINY["dev"])
    (tmp_path / "b" / "text_encoder" / "clip_l_tiny.safetensors").unlink()
    with (
        open_checkpoint(path) as file,
        pytest.raises(CheckpointError, match=r"CLIP-L \(768 wide.*models/text_encoder"),
    ):
        components_of(detect_family(file), file)
    path = write_parts(tmp_path / "c", TINY["klein"])
    (tmp_path / "c" / "VAE" / "vae.safetensors").unlink()
    with open_checkpoint(path) as file:
        family = detect_family(file)
        components = components_of(family, file)
        with pytest.raises(CheckpointError, match=r"no vae found.*VAE of FLUX\.2 \(flux2-vae\.safetensors.*models/VAE"):
            assign_tensors(file, components, family.is_ignored)


def test_a_vae_may_lack_what_only_training_reads(tmp_path: Path) -> None:
    """The count of batches behind the means and variances of FLUX.2's latents."""
    path = write_in_one(tmp_path, TINY["klein"])
    plan = PrecisionPlan(device=torch.device("cpu"), compute_dtype=torch.float32, vae_dtype=torch.float32)

    def loaded(without: str) -> LoadedModel:
        tensors = {name: tensor for name, tensor in load_file(path).items() if not name.endswith(without)}
        save_file(tensors, path)
        catalogue = CheckpointCatalogue([path.parent], HashCache(tmp_path / "hashes.json"))
        return load_model(catalogue.get(path.name), CONFIGS, lambda _: plan)

    norm = loaded("bn.num_batches_tracked").vae.bn
    assert norm.num_batches_tracked.tolist() == 0 and not norm.running_var.is_meta
    with pytest.raises(CheckpointError, match=r"1 tensors are missing: .*bn\.running_var\."):
        loaded("bn.running_var")


def test_a_vae_of_another_family_is_named(tmp_path: Path) -> None:
    path = write_parts(tmp_path, TINY["klein"])
    save_file(recipe_tensors("flux_ae_tiny"), tmp_path / "ae.safetensors")
    with (
        open_checkpoint(path, modules=[tmp_path / "ae.safetensors"]) as file,
        pytest.raises(CheckpointError, match=r"ae\.safetensors has latents of 16 channels, and the model takes 32"),
    ):
        components_of(detect_family(file), file)


def test_control_models_are_refused_by_what_they_take(tmp_path: Path) -> None:
    tensors = TINY["dev"].denoiser()
    tensors["img_in.weight"] = torch.cat([tensors["img_in.weight"]] * 2, dim=1)
    path = write_parts(tmp_path, TINY["dev"])
    save_file(tensors, path)
    with (
        open_checkpoint(path) as file,
        pytest.raises(CheckpointError, match=r"takes 128 channels, as control models \(Canny, Depth\) do"),
    ):
        components_of(detect_family(file), file)


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("dev", "flux1-dev.safetensors", "Steps: 20, {}, CFG scale: 1, Distilled CFG Scale: 3.5"),
        ("dev", "FLUX.1-Kontext-dev.gguf", "Steps: 20, {}, CFG scale: 1, Distilled CFG Scale: 2.5"),
        ("fill", "fill.safetensors", "Steps: 28, {}, CFG scale: 1, Distilled CFG Scale: 30"),
        ("klein", "flux-2-klein-4b.safetensors", "Steps: 4, {}, CFG scale: 1"),
        ("klein", "flux-2-klein-base-4b.safetensors", "Steps: 20, {}, CFG scale: 4"),
        ("chroma", "Chroma1-HD.safetensors", "Steps: 26, {}, CFG scale: 4"),
    ],
)
def test_usual_settings_are_offered_as_an_infotext_says_them(name: str, file: str, said: str) -> None:
    tiny = TINY[name]
    family = FAMILIES.get({"klein": "flux2_klein", "chroma": "chroma1"}.get(name, "flux1_dev"))
    usual = family.denoiser.usual_settings(tiny.transformer(), file)
    assert usual is not None
    assert usual.infotext == said.format("Sampler: Euler, Schedule type: Simple")
