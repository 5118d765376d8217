"""Krea 2 raw and turbo (Krea 2026): a transformer with one stream of text and image that predicts a flow, and reads
twelve layers of a language model. With an edit LoRA it edits by references."""

from dataclasses import replace
from functools import partial

from PIL import Image, ImageOps

from modules.models.detection.families import KREA2, QWEN3_VL
from modules.models.families.denoiser_context import CLEAN_REFERENCE, ISOLATED_REFERENCE
from modules.models.families.family import QWEN_IMAGE_VAE, ExternalTextEncoder, Latents, ModelFamily
from modules.models.families.krea2.denoiser import DENOISER, context_width
from modules.models.families.krea2.layout import ENCODER_PREFIX, FOLDER
from modules.models.families.language_model import read_by
from modules.models.families.packing import PATCH
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.models.text_encoders.llm import HiddenStates, head_component, vision_llm_aliases
from modules.models.text_encoders.llm_texts import (
    DESCRIBED,
    DESCRIBED_SYSTEM_TOKENS,
    SEEN,
    ImageWords,
    LlmConditioner,
    LlmRecipe,
)
from modules.models.text_encoders.vision import EDITED_PIXELS, for_describing, tower_component
from modules.models.text_encoders.writing import Writing

TOKENS = 512
ROPE_THETA = 5_000_000.0
TEXTS = LlmRecipe(
    HiddenStates(tuple(range(2, 36, 3))),
    DESCRIBED,
    most=DESCRIBED_SYSTEM_TOKENS + TOKENS,
    keeps_end=True,
    dropped=DESCRIBED_SYSTEM_TOKENS,
)
GROUNDED_PX = 768
"""The longest side with which a reference is seen; LoRAs of Identity Edit were trained with up to that."""
CLEAN_LEAST_PX = 28
"""The shortest side with which a reference at time 0 is seen."""


def _shown(image: Image.Image) -> Image.Image:
    image = image.convert("RGB")
    side = (GROUNDED_PX, GROUNDED_PX)
    return ImageOps.contain(image, side, Image.Resampling.LANCZOS) if max(image.size) > GROUNDED_PX else image


SEEING = replace(TEXTS, most=TOKENS, images=ImageWords(SEEN, _shown))
SEEING_CLEAN = replace(
    SEEING, images=ImageWords("Picture {}: " + SEEN, partial(for_describing, area=EDITED_PIXELS, least=CLEAN_LEAST_PX))
)
"""References as AI Toolkit's edit mode shows them, at time 0 (github.com/ostris/ai-toolkit)."""


def _conditioner(parts: TextParts, request: TextRequest) -> LlmConditioner:
    seeing = SEEING_CLEAN if request.shown_as in (CLEAN_REFERENCE, ISOLATED_REFERENCE) else SEEING
    return (seeing if request.images else TEXTS).conditioner(parts, request)


ENCODER = ExternalTextEncoder("qwen3vl_4b", ENCODER_PREFIX, is_part=True, need=QWEN3_VL)
STYLE = (
    "It reads one paragraph of 40 to 120 words that names the medium (photo, painting, render ...), then the subject, "
    "the light, the colors and the mood."
)
TOWER_HINT = "Use an encoder file that holds the tensors visual.* as well (GGUF files have none)."
FAMILY = ModelFamily(
    signs=KREA2,
    denoiser=DENOISER,
    texts=read_by(
        TEXTS,
        ENCODER,
        TokenCounting("qwen3", TOKENS),
        width=context_width,
        theta=ROPE_THETA,
        conditioner=_conditioner,
        shown_pixels=lambda name, count: GROUNDED_PX**2,
        writing=Writing(partial(head_component, prefix=ENCODER_PREFIX, states=TEXTS.states), STYLE),
        tower=partial(tower_component, prefix=ENCODER_PREFIX, hint=TOWER_HINT),
    ),
    latents=Latents("taew2_1", "vaeapprox-wan21", QWEN_IMAGE_VAE, multiple=PATCH),
    folder=FOLDER,
    config_name="krea2.yaml",
    leaves_fp16=True,
    aliases=vision_llm_aliases(ENCODER_PREFIX),
)
