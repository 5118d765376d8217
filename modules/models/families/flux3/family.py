"""FLUX.3 klein and its base (Black Forest Labs 2026): a transformer with blocks for image, references and text and then
for all of them, which predicts a flow or, distilled, the way to a given time, and reads eight layers of a language
model that sees."""

from modules.models.detection.families import FLUX3_KLEIN, QWEN3_VL_OF_FLUX3
from modules.models.families.family import (
    ExternalTextEncoder,
    Latents,
    LoraBase,
    LoraNaming,
    ModelFamily,
    context_width,
    is_left_over,
)
from modules.models.families.flux2.family import VAE
from modules.models.families.flux3.denoiser import DENOISER
from modules.models.families.flux3.layout import ENCODER_PREFIX, FOLDER, OF_TRAINING
from modules.models.families.language_model import read_by
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.llm import HiddenStates, vision_llm_aliases
from modules.models.text_encoders.llm_texts import LlmRecipe

TOKENS, WINDOW = 8192, 80
ROPE_THETA = 5_000_000.0
TEXTS = LlmRecipe(
    HiddenStates(tuple(range(4, 33, 4))),
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    most=TOKENS,
    window=WINDOW,
)
ENCODER = ExternalTextEncoder("qwen3vl_4b", ENCODER_PREFIX, is_part=True, need=QWEN3_VL_OF_FLUX3)
FAMILY = ModelFamily(
    signs=FLUX3_KLEIN,
    denoiser=DENOISER,
    texts=read_by(TEXTS, ENCODER, TokenCounting("qwen3", TOKENS), WINDOW, context_width, ROPE_THETA),
    latents=Latents("taef2", "vaeapprox-f2", VAE),
    folder=FOLDER,
    config_name="flux3-klein.yaml",
    leaves_fp16=True,
    aliases=vision_llm_aliases(ENCODER_PREFIX),
    lora_base=LoraBase(
        "flux_3_klein",
        "Flux.3-klein",
        LoraNaming.DOTTED_ORIGINAL,
        ("mode_blocks.", "transformer_blocks."),
        "transformer",
    ),
    is_ignored=lambda key: key.startswith(OF_TRAINING) or is_left_over(key),
)
