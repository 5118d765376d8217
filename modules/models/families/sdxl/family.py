"""Stable Diffusion XL and its refiner (Podell et al. 2023, arXiv:2307.01952).

The base model has CLIP-L and OpenCLIP ViT-bigG side by side, and adds the pooled text and embedded sizes to the time
embedding; the refiner has bigG alone and an aesthetic score instead of the target size. Pruned ones (SSD-1B) differ
in depth only, which the tensors tell; the inpainting model has 9 input channels.
"""

from functools import partial
from pathlib import Path

from modules.models.families.architecture import LdmArchitecture
from modules.models.families.diffusers_config import check_text
from modules.models.families.family import ExternalTextEncoder, LoraBase, LoraNaming
from modules.models.families.ldm.conditioning import ClipConditioning, SizeVector
from modules.models.families.ldm.family import LdmFamily
from modules.models.families.ldm.parts import context_width, has_vector
from modules.models.families.sdxl.adapter_version import SDXL_ADAPTERS
from modules.models.names.component import Component, Header
from modules.models.names.folder_layout import (
    FIRST,
    SECOND,
    SIZES_EMBEDDING,
    UNET,
    FolderLayout,
    Parts,
    clip_names,
    projected_open_clip_names,
)
from modules.models.text_encoders.clip import clip_component, open_clip_component
from modules.models.text_encoders.clip_encoder import TextTowerRecipe
from modules.sampling.schedules import ALIGN_YOUR_STEPS_1024

CLIP_L_PREFIX = "conditioner.embedders.0.transformer"
BIG_G_PREFIX = "conditioner.embedders.1.model"
REFINER_BIG_G_PREFIX = "conditioner.embedders.0.model"
REFINER_CONTEXT_WIDTH = 1280
CLIP_L = TextTowerRecipe("text_encoder", layer_from_end=2, skips_by_options=True, final_norm=False)
BIG_G = TextTowerRecipe("text_encoder_2", layer_from_end=2, final_norm=False, pad_id=0, pooled=True)


def _detects(header: Header) -> bool:
    return f"{BIG_G_PREFIX}.ln_final.weight" in header


def _detects_unet(header: Header) -> bool:
    return has_vector(header) and context_width(header) != REFINER_CONTEXT_WIDTH


def _detects_refiner_unet(header: Header) -> bool:
    return has_vector(header) and context_width(header) == REFINER_CONTEXT_WIDTH


def _text_encoders(
    header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
) -> tuple[Component, ...]:
    return (
        clip_component("text_encoder", header, CLIP_L_PREFIX, architecture.text_config_folder, config_folders),
        open_clip_component("text_encoder_2", header, BIG_G_PREFIX, with_projection=True),
    )


def _detects_refiner(header: Header) -> bool:
    return has_vector(header) and f"{REFINER_BIG_G_PREFIX}.ln_final.weight" in header


def _text_encoders_of_refiner(
    header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
) -> tuple[Component, ...]:
    del architecture, config_folders
    return (open_clip_component("text_encoder_2", header, REFINER_BIG_G_PREFIX, with_projection=True),)


def _detects_folder(parts: Parts) -> bool:
    return any(name.startswith(SIZES_EMBEDDING) for name in parts.get(UNET, {}))


def _detects_refiner_folder(parts: Parts) -> bool:
    return UNET in parts and SECOND in parts and FIRST not in parts


_CHECK_OPEN_CLIP = partial(check_text, activation="gelu")
SDXL = LdmFamily(
    label="SDXL",
    is_large=True,
    schedule_table=ALIGN_YOUR_STEPS_1024,
    config_name="sd_xl_base.yaml",
    tiny_vae="taesdxl",
    approx_vae="vaeapprox-sdxl",
    text=ClipConditioning((CLIP_L, BIG_G), SizeVector.SIZES, zero_empty_negative=True),
    folder=FolderLayout(
        title="XL",
        detects=_detects_folder,
        names={
            FIRST: partial(clip_names, prefix=CLIP_L_PREFIX),
            SECOND: partial(projected_open_clip_names, prefix=BIG_G_PREFIX),
        },
        checks={FIRST: partial(check_text, activation="quick_gelu"), SECOND: _CHECK_OPEN_CLIP},
    ),
    detects=_detects,
    detects_denoiser=_detects_unet,
    external_encoders=(
        ExternalTextEncoder("clip_l", CLIP_L_PREFIX, is_part=True),
        ExternalTextEncoder("clip_g", BIG_G_PREFIX, is_part=True),
    ),
    text_encoders=_text_encoders,
    lora_base=LoraBase("sdxl_base_v1-0", "stable-diffusion-xl-v1-base", LoraNaming.KOHYA_ORIGINAL),
    adapter_version=SDXL_ADAPTERS,
)
SDXL_REFINER = LdmFamily(
    label="SDXL refiner",
    is_large=True,
    schedule_table=ALIGN_YOUR_STEPS_1024,
    config_name="sd_xl_refiner.yaml",
    tiny_vae="taesdxl",
    approx_vae="vaeapprox-sdxl",
    text=ClipConditioning((BIG_G,), SizeVector.AESTHETIC, zero_empty_negative=True),
    folder=FolderLayout(
        title="XL refiner",
        detects=_detects_refiner_folder,
        names={SECOND: partial(projected_open_clip_names, prefix=REFINER_BIG_G_PREFIX)},
        checks={SECOND: _CHECK_OPEN_CLIP},
    ),
    detects=_detects_refiner,
    detects_denoiser=_detects_refiner_unet,
    external_encoders=(ExternalTextEncoder("clip_g", REFINER_BIG_G_PREFIX, is_part=True),),
    text_encoders=_text_encoders_of_refiner,
    adapter_version=SDXL_ADAPTERS,
)
