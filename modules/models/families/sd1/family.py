"""Stable Diffusion 1.x: one CLIP-L text model, cross-attention on its last hidden states, eps prediction.

With 9 input channels it is the inpainting model, with 8 instruct-pix2pix (Brooks et al. 2022, arXiv:2211.09800).
"""

from functools import partial
from pathlib import Path

from modules.models.families.architecture import LdmArchitecture
from modules.models.families.diffusers_config import check_text
from modules.models.families.family import ExternalTextEncoder, LoraBase
from modules.models.families.ldm.conditioning import ClipConditioning
from modules.models.families.ldm.family import LdmFamily
from modules.models.families.ldm.parts import context_width, has_linear_projections, has_vector, input_channels
from modules.models.families.sd1.adapter_version import SD1_ADAPTERS
from modules.models.names import clip_text
from modules.models.names.component import Component, Header
from modules.models.names.folder_layout import FIRST, FolderLayout, clip_names
from modules.models.text_encoders.clip import clip_component
from modules.models.text_encoders.clip_encoder import TextTowerRecipe

INPUT_CHANNELS = (4, 8, 9)
OTHER_CONTEXT_WIDTH = 1024  # of SD 2.x
OTHER_TEXT_MODELS = ("conditioner.", "cond_stage_model.model.")


def _detects(header: Header) -> bool:
    if input_channels(header) not in INPUT_CHANNELS or has_vector(header):
        return False
    return not any(key.startswith(OTHER_TEXT_MODELS) for key in header)


def _detects_unet(header: Header) -> bool:
    return (
        input_channels(header) in INPUT_CHANNELS
        and not has_vector(header)
        and not has_linear_projections(header)
        and context_width(header) != OTHER_CONTEXT_WIDTH
    )


def _text_encoders(
    header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
) -> tuple[Component, ...]:
    folder = architecture.text_config_folder
    return (clip_component("text_encoder", header, clip_text.PREFIX, folder, config_folders),)


SD1 = LdmFamily(
    label="SD 1.x",
    config_name="v1-inference.yaml",
    tiny_vae="taesd",
    approx_vae="model",
    text=ClipConditioning((TextTowerRecipe("text_encoder"),)),
    folder=FolderLayout(
        title="Stable Diffusion 1.x",
        detects=lambda parts: True,  # what none of the others is
        names={FIRST: partial(clip_names, prefix=clip_text.PREFIX)},
        checks={FIRST: partial(check_text, activation="quick_gelu")},
    ),
    detects=_detects,
    detects_denoiser=_detects_unet,
    external_encoders=(ExternalTextEncoder("clip_l", clip_text.PREFIX, is_part=True),),
    text_encoders=_text_encoders,
    lora_base=LoraBase("sd_v1", "stable-diffusion-v1"),
    adapter_version=SD1_ADAPTERS,
)
