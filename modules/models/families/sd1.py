"""Stable Diffusion 1.x: one CLIP-L text model, cross-attention on its last hidden states, eps prediction.

With 9 input channels it is the inpainting model, with 8 instruct-pix2pix (Brooks et al. 2022, arXiv:2211.09800).
"""

from pathlib import Path

from modules.models.architecture import LdmArchitecture
from modules.models.families.family import FAMILIES, Component, ConditioningRecipe, Header, TextTowerRecipe
from modules.models.families.ldm_family import LdmFamily
from modules.models.families.ldm_parts import has_vector, input_channels
from modules.models.families.text_parts import clip_component
from modules.models.layouts.keymaps import clip_text

INPUT_CHANNELS = (4, 8, 9)
OTHER_TEXT_MODELS = ("conditioner.", "cond_stage_model.model.")


def _detects(header: Header) -> bool:
    if input_channels(header) not in INPUT_CHANNELS or has_vector(header):
        return False
    return not any(key.startswith(OTHER_TEXT_MODELS) for key in header)


def _text_encoders(
    header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
) -> tuple[Component, ...]:
    folder = architecture.text_config_folder
    return (clip_component("text_encoder", header, clip_text.PREFIX, folder, config_folders),)


FAMILIES.add(
    "sd1",
    LdmFamily(
        label="SD 1.x",
        config_name="v1-inference.yaml",
        tiny_vae="taesd",
        recipe=ConditioningRecipe((TextTowerRecipe("text_encoder"),)),
        detects=_detects,
        text_encoders=_text_encoders,
    ),
)
