"""Anima (CircleStone Labs 2026): NVIDIA's Cosmos-Predict2 transformer (arXiv:2503.14492), which predicts a flow, behind
an adapter that joins a language model's states and T5's tokens."""

from modules.models.detection.families import ANIMA, QWEN3_06B
from modules.models.families.anima.conditioning import ENCODER, STATES, AdaptedTexts
from modules.models.families.anima.denoiser import DENOISER, TOKENS
from modules.models.families.anima.layout import ENCODER_PREFIX, FOLDER
from modules.models.families.family import (
    QWEN_IMAGE_VAE,
    ExternalTextEncoder,
    Latents,
    LoraBase,
    LoraNaming,
    ModelFamily,
    Texts,
)
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.llm import llm_component

QWEN = ExternalTextEncoder("qwen3_06b", ENCODER_PREFIX, is_part=True, need=QWEN3_06B)
GROWN = {40: (2, 5, 8, 11, 14, 17, 21, 24, 27, 30, 33, 36)}
"""Of Anima 2.9B, which was made of the one with 28 blocks."""
FAMILY = ModelFamily(
    signs=ANIMA,
    denoiser=DENOISER,
    texts=Texts(
        encoders=(
            lambda header, *_: llm_component(ENCODER, header, ENCODER_PREFIX, STATES, QWEN.hint, QWEN.width(header)),
        ),
        conditioning=AdaptedTexts,
        tokens=TOKENS,
        counting=TokenCounting("t5", TOKENS),
        reads_weights=True,
        external=(QWEN,),
    ),
    latents=Latents("taew2_1", "vaeapprox-wan21", QWEN_IMAGE_VAE),
    folder=FOLDER,
    config_name="anima.yaml",
    leaves_fp16=True,
    grown=GROWN,
    lora_base=LoraBase("anima", "anima", LoraNaming.DOTTED_ORIGINAL, part="transformer"),
)
