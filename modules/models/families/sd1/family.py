"""Stable Diffusion 1.x: one CLIP-L text model, cross-attention on its last hidden states, eps prediction.

With 9 input channels it is the inpainting model, with 8 instruct-pix2pix (Brooks et al. 2022, arXiv:2211.09800).
"""

from functools import partial

from modules.models.detection.families import SD1
from modules.models.families.diffusers_config import check_text
from modules.models.families.family import ExternalTextEncoder, Latents, LoraBase, ModelFamily
from modules.models.families.ldm.conditioning import ClipConditioning
from modules.models.families.ldm.denoiser import DENOISER
from modules.models.families.ldm.noise import ldm_noise
from modules.models.names import clip_text
from modules.models.names.folder_layout import FIRST, FolderLayout, clip_names
from modules.models.text_encoders.clip import clip_component
from modules.models.text_encoders.clip_encoder import TextTowerRecipe

FAMILY = ModelFamily(
    signs=SD1,
    denoiser=DENOISER,
    texts=ClipConditioning((TextTowerRecipe("text_encoder"),)).texts(
        lambda header, architecture, folders: clip_component(
            "text_encoder", header, clip_text.PREFIX, architecture.text_config_folder, folders
        ),
        (ExternalTextEncoder("clip_l", clip_text.PREFIX, is_part=True),),
    ),
    latents=Latents("taesd", "model"),
    noise=ldm_noise(),
    folder=FolderLayout(
        title="Stable Diffusion 1.x",
        names={FIRST: partial(clip_names, prefix=clip_text.PREFIX)},
        checks={FIRST: partial(check_text, activation="quick_gelu")},
    ),
    config_name="v1-inference.yaml",
    is_large=False,
    lora_base=LoraBase("sd_v1", "stable-diffusion-v1"),
)
