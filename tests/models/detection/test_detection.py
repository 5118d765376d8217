"""One detection for everybody: what a header says that a file is, without torch, and the same as loading finds."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from compat.facades.model_view import CheckpointInfo, family_of_file
from modules.downloads.known import known_models
from modules.models.detection.families import FAMILIES, PREFIX, adapter_versions, version_of_metadata
from modules.models.detection.files import CHECKPOINTS, ENCODERS, TINY_VAES, VAES, Detected, detected
from modules.models.detection.parts import ENCODER_TYPES, Part
from modules.models.detection.parts import VAES as VAES_KNOWN
from modules.models.families.registry import all_families, detect_family
from modules.models.files.file_header import header_of
from modules.models.files.header import Header, Stored
from modules.models.opening.checkpoint import open_checkpoint
from tests.models.diffusers_folders import unet_tensors
from tests.models.dit_files import full_header
from tests.models.family_files import FAMILY_NAMES, write_family
from tests.models.split_models import SPLIT_FAMILIES, split_model

ROOT = Path(__file__).parents[3]
Shapes = Mapping[str, tuple[int, ...]]
OF_NAME = {
    **dict.fromkeys(("sd1", "sd1-inpainting", "pix2pix"), "sd1"),
    **dict.fromkeys(("sd2", "sd2-inpainting", "sd2-v", "sd-turbo"), "sd2"),
    **dict.fromkeys(("sdxl", "sdxl-turbo", "sdxl-inpainting", "sdxl-v", "sdxl-pruned"), "sdxl"),
    **{"sdxl-refiner": "sdxl_refiner", "sd3": "sd3", "sd3.5": "sd3"},
}
FULL = {
    **{"flux1-dev": "flux1_dev", "flux1-schnell": "flux1_schnell", "flux1-fill-dev": "flux1_dev"},
    **{"flux2-klein-4b": "flux2_klein", "flux2-klein-9b": "flux2_klein", "chroma1": "chroma1"},
    **{"z-image": "z_image", "ernie-image": "ernie_image"},
    **{"qwen-image-2.1": "qwen_image21", "qwen-image-2.1.diffusers": "qwen_image21"},
    **{"flux3-klein": "flux3_klein", "flux3-klein.diffusers": "flux3_klein"},
}
LISTED = {
    "flux1-schnell": "flux1-schnell",
    "flux1-dev": "flux1-schnell",
    "flux2-klein-4b": "flux2-klein-4b",
    "chroma1": "chroma1-hd",
    "z-image": "z-image-turbo",
    "qwen-image": "qwen-image",
    "te-ministral3-3b": "ministral3-3b",
    "te-t5xxl": "t5xxl-fp8",
    "te-qwen2.5-vl-7b": "qwen25-vl-7b",
    "te-clip-l": "clip-l",
    "te-qwen3-4b": "qwen3-4b",
    "vae-flux1": "flux-vae",
    "vae-flux2": "flux2-vae",
    "vae-qwen-image": "qwen-image-vae",
    "vae-qwen-image-2.1": "qwen-image-2.1-vae",
    "te-qwen3-vl-8b": "qwen3-vl-8b",
}


def look(shapes: Shapes) -> Detected:
    return detected(Header("safetensors", {name: Stored(shape, "BF16") for name, shape in shapes.items()}))


def full(name: str, prefix: str = "") -> Shapes:
    return {key: tuple(entry.shape) for key, entry in full_header(name, prefix).items()}


def family_name(found: Detected) -> str:
    return "" if found.family is None else found.family.name


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_checkpoint_is_known_as_loading_knows_it(name: str, tmp_path: Path) -> None:
    path = write_family(tmp_path, name)
    with open_checkpoint(path) as file:
        loaded = detect_family(file)
    found = detected(header_of(path))
    assert (found.folder, family_name(found)) == (CHECKPOINTS, loaded.signs.name) == (CHECKPOINTS, OF_NAME[name])
    assert {part.type for part in found.parts} >= {loaded.signs.name, "AutoencoderKL", "clip"}
    assert family_of_file(CheckpointInfo(str(path))) == loaded.label


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("prefix", ["", PREFIX, "diffusion_model.", f"{PREFIX}net."])
def test_a_denoiser_is_known_whatever_is_before_its_names(name: str, prefix: str) -> None:
    found = look(full(name, prefix))
    assert (found.folder, family_name(found), found.refusal) == (CHECKPOINTS, FULL[name], "")


@pytest.mark.parametrize("family", SPLIT_FAMILIES)
def test_the_files_of_a_split_model_are_known(family: str) -> None:
    model = split_model(family)
    assert family_name(look({key: tuple(value.shape) for key, value in model.denoiser.items()})) == family
    for _, tensors in model.texts.values():
        text = look({key: tuple(value.shape) for key, value in tensors.items()})
        (part,) = text.parts
        assert text.folder == ENCODERS and part.width and part.type in ENCODER_TYPES
    vae = look({key: tuple(value.shape) for key, value in model.vae.items()})
    assert vae.folder == VAES and [part.type.startswith("Autoencoder") for part in vae.parts] == [True]


@pytest.mark.parametrize("name", ["sd1", "sd2", "sdxl"])
def test_a_unet_of_diffusers_is_known(name: str) -> None:
    tensors = unet_tensors(name)
    assert family_name(look({key: tuple(value.shape) for key, value in tensors.items()})) == name


def test_what_is_not_read_is_refused_in_a_sentence() -> None:
    assert look({"patch_embedding.weight": (8, 8, 1, 2, 2)}).refusal.startswith("is a video model (patch_embedding")
    assert look({"something": (2,)}).refusal == "is of no known kind of model: its tensors begin with something."
    language = {"model.layers.0.self_attn.q_proj.weight": (8, 8), "model.embed_tokens.weight": (99, 5120)}
    assert "language model (5120 wide)" in look({**language, "lm_head.weight": (99, 5120)}).refusal
    assert "language model" in look(language).refusal
    for architecture in ("wan", "llama"):
        assert architecture in detected(Header("gguf", metadata={"general.architecture": architecture})).refusal
    assert detected(Header("gguf", metadata={"general.architecture": "qwen3"})).folder == ENCODERS


@pytest.mark.parametrize("name", LISTED)
def test_the_entries_of_the_list_are_known_by_recorded_headers(name: str) -> None:
    shapes = full(name)
    header = Header("safetensors", {key: Stored(shape, "BF16") for key, shape in shapes.items()})
    known = known_models(ROOT / "configs")
    assert [entry.name for entry in known.values() if entry.is_among(detected(header).parts)] == [LISTED[name]]


def test_a_larger_model_of_a_family_is_no_entry_of_the_smaller() -> None:
    known = known_models(ROOT / "configs")
    for name, listed in (("flux2-klein-9b", "flux2-klein-9b"), ("te-qwen3-8b", "qwen3-8b")):
        header = Header("safetensors", {key: Stored(shape, "BF16") for key, shape in full(name).items()})
        assert [one.name for one in known.values() if one.is_among(detected(header).parts)] == [listed]


def test_the_types_of_the_list_are_those_of_the_detection() -> None:
    types = {family.name for family in FAMILIES} | set(ENCODER_TYPES)
    types |= {one.type for one in VAES_KNOWN}
    assert {name for entry in known_models(ROOT / "configs").values() for name in entry.types} <= types


def test_the_parts_inside_of_a_whole_checkpoint_are_found() -> None:
    texts = full("te-clip-l", "text_encoders.clip_l.transformer.")
    whole = {**full("flux1-schnell", PREFIX), **texts, **full("vae-flux1", "first_stage_model.")}
    assert set(look(whole).parts) == {Part("flux1_schnell", 0), Part("clip", 768), Part("AutoencoderKL", 16)}


def test_every_family_of_the_table_can_be_loaded() -> None:
    assert [family.signs for family in all_families()] == list(FAMILIES)


def test_cards_have_words_for_families() -> None:
    assert adapter_versions() == ("SD1", "SD2", "SDXL")
    assert version_of_metadata({"ss_base_model_version": "sdxl_base_v1-0"}) == "SDXL"
    assert version_of_metadata({"modelspec.architecture": "stable-diffusion-v1/lora"}) == "SD1"
    assert version_of_metadata({"ss_v2": "True"}) == "SD2" and version_of_metadata({}) == ""


def test_detection_imports_no_torch() -> None:
    names = "families, modules.models.detection.parts, modules.models.detection.files"
    code = f"import sys, modules.models.detection.{names}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_only_the_table_and_its_family_know_a_sign() -> None:
    """The signs of a family are in no second table."""
    signs = ("cap_pad_token", "txtfusion.projector", "img_mod.1.weight", "llm_adapter.embed", "conditioner.embedders.1")
    files = [path for path in (ROOT / "modules").rglob("*.py") if path.parent.name != "detection"]
    by_sign = {sign: [path for path in files if sign in path.read_text(encoding="utf-8")] for sign in signs}
    for sign, paths in by_sign.items():
        renaming = ("opening", "names.py")  # which gives tensors the names that the signs are looked for in
        outside = [path for path in paths if "families" not in path.parts and path.parts[-2:] != renaming]
        assert outside == [], sign


@pytest.mark.parametrize("half", ["decoder", "encoder"])
def test_a_tiny_vae_belongs_into_its_own_folder(half: str) -> None:
    path = ROOT / "models" / "VAE-taesd" / f"featherweight-scenes_{half}.safetensors"
    assert detected(header_of(path)).folder == TINY_VAES
    assert look({"decoder.layers.3.conv.0.weight": (64, 64, 3, 3)}).folder == TINY_VAES
