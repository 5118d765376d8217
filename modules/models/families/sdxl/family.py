"""Stable Diffusion XL and its refiner (Podell et al. 2023, arXiv:2307.01952).

The base model has CLIP-L and OpenCLIP ViT-bigG side by side, and adds the pooled text and embedded sizes to the time
embedding; the refiner has bigG alone and an aesthetic score instead of the target size. Pruned ones (SSD-1B) differ
in depth only, which the tensors tell; the inpainting model has 9 input channels.
"""

from functools import partial
from pathlib import Path

from modules.models.detection.families import SDXL, SDXL_REFINER
from modules.models.families.architecture import LdmArchitecture
from modules.models.families.diffusers_config import check_text
from modules.models.families.family import ExternalTextEncoder, Latents, LoraBase, LoraNaming, ModelFamily
from modules.models.families.ldm.conditioning import ClipConditioning, SizeVector
from modules.models.families.ldm.denoiser import DENOISER
from modules.models.families.ldm.noise import ldm_noise
from modules.models.names.component import Component, Header
from modules.models.names.folder_layout import FIRST, SECOND, FolderLayout, clip_names, projected_open_clip_names
from modules.models.text_encoders.clip import clip_component, open_clip_component
from modules.models.text_encoders.clip_encoder import TextTowerRecipe
from modules.sampling.schedules import ALIGN_YOUR_STEPS_1024

CLIP_L_PREFIX = "conditioner.embedders.0.transformer"
BIG_G_PREFIX = "conditioner.embedders.1.model"
REFINER_BIG_G_PREFIX = "conditioner.embedders.0.model"
CLIP_L = TextTowerRecipe("text_encoder", layer_from_end=2, skips_by_options=True, final_norm=False)
BIG_G = TextTowerRecipe("text_encoder_2", layer_from_end=2, final_norm=False, pad_id=0, pooled=True)
LATENTS = Latents("taesdxl", "vaeapprox-sdxl")
NOISE = ldm_noise(ALIGN_YOUR_STEPS_1024)
_CHECK_OPEN_CLIP = partial(check_text, activation="gelu")


def _text_encoders(header: Header, architecture: LdmArchitecture, folders: tuple[Path, ...]) -> tuple[Component, ...]:
    return (
        clip_component("text_encoder", header, CLIP_L_PREFIX, architecture.text_config_folder, folders),
        open_clip_component("text_encoder_2", header, BIG_G_PREFIX, with_projection=True),
    )


BASE = ModelFamily(
    signs=SDXL,
    denoiser=DENOISER,
    texts=ClipConditioning((CLIP_L, BIG_G), SizeVector.SIZES, zero_empty_negative=True).texts(
        _text_encoders,
        (
            ExternalTextEncoder("clip_l", CLIP_L_PREFIX, is_part=True),
            ExternalTextEncoder("clip_g", BIG_G_PREFIX, is_part=True),
        ),
    ),
    latents=LATENTS,
    noise=NOISE,
    folder=FolderLayout(
        title="XL",
        names={
            FIRST: partial(clip_names, prefix=CLIP_L_PREFIX),
            SECOND: partial(projected_open_clip_names, prefix=BIG_G_PREFIX),
        },
        checks={FIRST: partial(check_text, activation="quick_gelu"), SECOND: _CHECK_OPEN_CLIP},
    ),
    config_name="sd_xl_base.yaml",
    lora_base=LoraBase("sdxl_base_v1-0", "stable-diffusion-xl-v1-base", LoraNaming.KOHYA_ORIGINAL),
)
REFINER = ModelFamily(
    signs=SDXL_REFINER,
    denoiser=DENOISER,
    texts=ClipConditioning((BIG_G,), SizeVector.AESTHETIC, zero_empty_negative=True).texts(
        lambda header, *_: open_clip_component("text_encoder_2", header, REFINER_BIG_G_PREFIX, with_projection=True),
        (ExternalTextEncoder("clip_g", REFINER_BIG_G_PREFIX, is_part=True),),
    ),
    latents=LATENTS,
    noise=NOISE,
    folder=FolderLayout(
        title="XL refiner",
        names={SECOND: partial(projected_open_clip_names, prefix=REFINER_BIG_G_PREFIX)},
        checks={SECOND: _CHECK_OPEN_CLIP},
    ),
    config_name="sd_xl_refiner.yaml",
)
