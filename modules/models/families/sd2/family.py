"""Stable Diffusion 2.x: OpenCLIP ViT-H, of which the last but one layer counts; eps or v prediction.

Nothing in a file tells eps from v, and the UNets have the same shape, so without a YAML or metadata one run of
the model tells. With 9 input channels it is the inpainting model, which predicts eps.
"""

from functools import partial
from pathlib import Path

from modules.models.families.architecture import LdmArchitecture
from modules.models.families.diffusers_config import check_text
from modules.models.families.family import LoraBase
from modules.models.families.ldm.conditioning import ClipConditioning
from modules.models.families.ldm.family import LdmFamily
from modules.models.families.ldm.parts import has_vector, input_channels
from modules.models.families.sd2.adapter_version import SD2_ADAPTERS
from modules.models.names.component import Component, Header
from modules.models.names.folder_layout import FIRST, UNET, FolderLayout, Parts, open_clip_names
from modules.models.text_encoders.clip import open_clip_component
from modules.models.text_encoders.clip_encoder import TextTowerRecipe

TEXT_PREFIX = "cond_stage_model.model"
TURBO_TEXT_PREFIX = "conditioner.embedders.0.model"  # in the files of SD-Turbo
INPAINTING_CHANNELS = 9
INPUT_CHANNELS = (4, INPAINTING_CHANNELS)


def _detects(header: Header) -> bool:
    if input_channels(header) not in INPUT_CHANNELS or has_vector(header):
        return False
    return any(f"{prefix}.ln_final.weight" in header for prefix in (TEXT_PREFIX, TURBO_TEXT_PREFIX))


def _detects_unet(header: Header) -> bool:
    return input_channels(header) in INPUT_CHANNELS and not has_vector(header)  # after SD 1.x in the registry


def _text_encoders(
    header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
) -> tuple[Component, ...]:
    del architecture, config_folders
    prefix = TEXT_PREFIX if f"{TEXT_PREFIX}.ln_final.weight" in header else TURBO_TEXT_PREFIX
    return (open_clip_component("text_encoder", header, prefix, with_projection=False),)


def _unsaid_prediction(header: Header) -> str:
    return "epsilon" if input_channels(header) == INPAINTING_CHANNELS else "probe"


def _is_projection(key: str) -> bool:
    return key.endswith(".text_projection.weight")


def _detects_folder(parts: Parts) -> bool:
    """By linear layers in the UNet, where SD1 has 1x1 convolutions."""
    unet = parts.get(UNET, {})
    return any(name.endswith(".proj_in.weight") and len(entry.shape) == 2 for name, entry in unet.items())


SD2 = LdmFamily(
    label="SD 2.x",
    config_name="v2-inference.yaml",
    v_latent_side=96,  # 768 px
    tiny_vae="taesd",
    approx_vae="model",
    text=ClipConditioning((TextTowerRecipe("text_encoder", layer_from_end=2, pad_id=0),)),
    folder=FolderLayout(
        title="2.x",
        detects=_detects_folder,
        names={FIRST: partial(open_clip_names, prefix=TEXT_PREFIX)},
        checks={FIRST: partial(check_text, activation="gelu")},
        left_out_layer=TEXT_PREFIX,
    ),
    detects=_detects,
    detects_denoiser=_detects_unet,
    text_encoders=_text_encoders,
    unsaid_prediction=_unsaid_prediction,
    ignores_too=_is_projection,
    lora_base=LoraBase("sd_v2", "stable-diffusion-v2"),
    adapter_version=SD2_ADAPTERS,
)
