"""Anima's files: both layouts map completely."""

import pytest

from modules.adapters.targets import TargetTable
from modules.models.families.architecture import read_architecture
from modules.models.families.header_sizes import sized_by_header
from modules.models.families.registry import FAMILIES, all_families, detect_family
from modules.models.loading.matching import assign_tensors
from modules.models.names.fused import unfused
from tests.models.dit_files import HeaderOnly, full_header, with_whole_names
from tests.recordings import CONFIGS

FAMILY = FAMILIES.get("anima")


def test_the_full_models_tensors_all_have_a_place() -> None:
    denoiser = with_whole_names(HeaderOnly(full_header("anima")))
    text = full_header("te-qwen3-0.6b", "text_encoders.qwen3_06b.transformer.")
    vae = full_header("vae-qwen-image", "first_stage_model.")
    file = unfused(HeaderOnly({**denoiser.entries, **text, **vae}), all_families())
    assert detect_family(file) is FAMILY
    architecture = sized_by_header(file.entries, read_architecture(CONFIGS / FAMILY.config_name))
    components = FAMILY.components(file.entries, architecture, ())
    assert len(assign_tensors(file, components, FAMILY.is_ignored)) == len(file.entries)


def test_a_model_of_more_blocks_has_a_place_for_all_of_them() -> None:
    """Anima 2.9B has 40: its names go on where those of Anima end."""
    first = full_header("anima")
    more = {
        key.replace("blocks.27.", f"blocks.{number}."): entry
        for number in range(28, 40)
        for key, entry in first.items()
        if "blocks.27." in key
    }
    denoiser = with_whole_names(HeaderOnly({**first, **more}))
    text = full_header("te-qwen3-0.6b", "text_encoders.qwen3_06b.transformer.")
    header = {**denoiser.entries, **text, **full_header("vae-qwen-image", "first_stage_model.")}
    file = HeaderOnly(header)
    assert detect_family(file) is FAMILY
    architecture = sized_by_header(file.entries, read_architecture(CONFIGS / FAMILY.config_name))
    components = FAMILY.components(file.entries, architecture, ())
    assert len(assign_tensors(file, components, FAMILY.is_ignored)) == len(file.entries)
    (transformer,) = (one.module for one in components if one.name == "unet")
    assert len(list(transformer.get_submodule("transformer_blocks").children())) == 40
    assert sum(one.numel() for one in transformer.parameters()) == pytest.approx(2.8e9, rel=0.05)
    table = TargetTable({one.name: (one.module, one.keymap.to_original) for one in components}, grown=FAMILY.grown)
    for written, number in ((0, 0), (2, 3), (14, 20), (27, 39)):
        names = [f"diffusion_model.blocks.{written}.mlp.layer1", f"lora_unet_blocks_{written}_self_attn_q_proj"]
        for moved in table.in_place([*names, "lora_unet_llm_adapter_blocks_1_mlp_0"]).values():
            target = table.find(moved)
            assert target is not None and (f"blocks.{number}." in target.path or "llm_adapter_blocks_1_" in moved)
    own = ["diffusion_model.blocks.2.mlp.layer1", "diffusion_model.blocks.39.mlp.layer1"]
    assert list(table.in_place(own).values()) == own


def test_names_of_the_folder_are_those_of_the_file() -> None:
    found = set()
    for part, name in (("transformer", "anima"), ("text_conditioner", "anima-text-conditioner")):
        keymap, ours = FAMILY.folder.names[part](full_header(f"{name}.diffusers"))
        found |= {str(keymap.to_original(name)) for name in ours.values()}
    assert found == set(with_whole_names(HeaderOnly(full_header("anima"))).entries)
