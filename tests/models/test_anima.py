"""Anima's files: both layouts map completely."""

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


def test_names_of_the_folder_are_those_of_the_file() -> None:
    found = set()
    for part, name in (("transformer", "anima"), ("text_conditioner", "anima-text-conditioner")):
        keymap, ours = FAMILY.folder.names[part](full_header(f"{name}.diffusers"))
        found |= {str(keymap.to_original(name)) for name in ours.values()}
    assert found == set(with_whole_names(HeaderOnly(full_header("anima"))).entries)
