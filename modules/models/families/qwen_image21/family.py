"""Qwen-Image-2.1 and its Turbo (Qwen team 2026): a transformer that reads a text, with images to edit in it, and
then the image behind it in one stream, predicts a flow, and reads the last layer of a language model that sees."""

from dataclasses import replace
from functools import partial

from modules.models.detection.families import QWEN3_VL_8B, QWEN_IMAGE21, VAE_QWEN21
from modules.models.families.architecture import LdmArchitecture
from modules.models.families.family import (
    ExternalTextEncoder,
    ExternalVae,
    Latents,
    LoraBase,
    LoraNaming,
    ModelFamily,
    Noise,
)
from modules.models.families.language_model import read_by
from modules.models.families.qwen_image.denoiser import is_distilled
from modules.models.families.qwen_image.family import levels_by_size
from modules.models.families.qwen_image21.denoiser import DENOISER, IMAGES, SLOT_SIDE, USER
from modules.models.families.qwen_image21.layout import ENCODER_PREFIX, FOLDER
from modules.models.files.tensor_source import TensorSource
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.llm import HiddenStates, vision_llm_aliases
from modules.models.text_encoders.llm_texts import LlmRecipe
from modules.models.text_encoders.vision import tower_component

SYSTEM = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
TOKENS, SYSTEM_TOKENS = 1024, 14
ROPE_THETA = 5_000_000.0
TEXTS = LlmRecipe(
    HiddenStates((-1,), normed=False),
    f"{SYSTEM}{USER}{{}}<|im_end|>\n<|im_start|>assistant\n",
    most=SYSTEM_TOKENS + TOKENS,
    keeps_end=True,
    dropped=SYSTEM_TOKENS,
    empty=" ",
)
EDITED = replace(TEXTS, most=TOKENS, images=IMAGES)
SHOWN_PIXELS = 1024 * 1024
TOWER_HINT = (
    "Without it images cannot be edited: use an encoder file that holds the tensors visual.* as well (GGUF files have "
    "none)."
)
ENCODER = ExternalTextEncoder("qwen3vl_8b", ENCODER_PREFIX, is_part=True, need=QWEN3_VL_8B)
TURBO_TABLE = (1.0, 0.978453, 0.95418, 0.926626, 0.89508, 0.845148, 0.704534, 0.414568)
"""The noise levels that Turbo was distilled to."""


def _told(architecture: LdmArchitecture, file: TensorSource) -> LdmArchitecture:
    if not is_distilled(file.path.name):
        return architecture
    schedule = replace(architecture.noise_schedule, flow_table=TURBO_TABLE, shifts_by_size=False)
    return replace(architecture, noise_schedule=schedule)


FAMILY = ModelFamily(
    signs=QWEN_IMAGE21,
    denoiser=DENOISER,
    texts=read_by(
        TEXTS,
        ENCODER,
        TokenCounting("qwen3", TOKENS),
        theta=ROPE_THETA,
        conditioner=lambda parts, request: (EDITED if request.images else TEXTS).conditioner(parts, request),
        tower=partial(tower_component, prefix=ENCODER_PREFIX, hint=TOWER_HINT),
        shown_pixels=lambda name, count: SHOWN_PIXELS,
    ),
    latents=Latents("taeqwen21", "vaeapprox-qwen21", ExternalVae(VAE_QWEN21, ("qwen_image_2.1",)), multiple=SLOT_SIDE),
    noise=Noise(levels=partial(levels_by_size, patch=1), told=_told),
    folder=FOLDER,
    config_name="qwen-image-2.1.yaml",
    leaves_fp16=True,
    aliases=vision_llm_aliases(ENCODER_PREFIX),
    lora_base=LoraBase("qwen_image_2_1", "Qwen-Image-2.1", LoraNaming.DOTTED, part="transformer"),
)
