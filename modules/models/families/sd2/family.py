"""Stable Diffusion 2.x: OpenCLIP ViT-H, of which the last but one layer counts; eps or v prediction.

Nothing in a file tells eps from v, and the UNets have the same shape, so without a YAML or metadata one run of
the model tells. With 9 input channels it is the inpainting model, which predicts eps.
"""

from functools import partial

from modules.models.detection.families import OPEN_CLIP, SD2, input_channels
from modules.models.families.architecture import LdmArchitecture
from modules.models.families.diffusers_config import check_text
from modules.models.families.family import Latents, LoraBase, ModelFamily, is_left_over
from modules.models.families.ldm.conditioning import ClipConditioning
from modules.models.families.ldm.denoiser import DENOISER
from modules.models.families.ldm.noise import ldm_noise
from modules.models.names.component import Component, Header
from modules.models.names.folder_layout import FIRST, FolderLayout, open_clip_names
from modules.models.text_encoders.clip import open_clip_component
from modules.models.text_encoders.clip_encoder import TextTowerRecipe

TEXT_PREFIX = "cond_stage_model.model"
TURBO_TEXT_PREFIX = "conditioner.embedders.0.model"  # in the files of SD-Turbo
INPAINTING_CHANNELS = 9


def _text_encoder(header: Header, architecture: LdmArchitecture, folders: object) -> Component:
    prefix = TEXT_PREFIX if f"{TEXT_PREFIX}.{OPEN_CLIP}" in header else TURBO_TEXT_PREFIX
    return open_clip_component("text_encoder", header, prefix, with_projection=False)


def _unsaid_prediction(header: Header) -> str:
    return "epsilon" if input_channels(header) == INPAINTING_CHANNELS else "probe"


FAMILY = ModelFamily(
    signs=SD2,
    denoiser=DENOISER,
    texts=ClipConditioning((TextTowerRecipe("text_encoder", layer_from_end=2, pad_id=0),)).texts(_text_encoder),
    latents=Latents("taesd", "model"),
    noise=ldm_noise(unsaid=_unsaid_prediction, v_latent_side=96),  # 768 px
    folder=FolderLayout(
        title="2.x",
        names={FIRST: partial(open_clip_names, prefix=TEXT_PREFIX)},
        checks={FIRST: partial(check_text, activation="gelu")},
        left_out_layer=TEXT_PREFIX,
    ),
    config_name="v2-inference.yaml",
    is_large=False,
    lora_base=LoraBase("sd_v2", "stable-diffusion-v2"),
    is_ignored=lambda key: is_left_over(key) or key.endswith(".text_projection.weight"),
)
