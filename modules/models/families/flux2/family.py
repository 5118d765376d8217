"""FLUX.2 (Black Forest Labs 2025, 2026): a transformer whose blocks share their modulation, which predicts a flow, with
a language model as its text encoder. It edits: an image to start from is shown to it as a reference.

Two families share it. FLUX.2 klein 4B and 9B read with Qwen3; FLUX.2 dev reads with Mistral Small 3, was distilled from
guidance and takes its scale as an input.
"""

from functools import partial

from modules.models.detection.families import FLUX2_DEV, FLUX2_KLEIN, MISTRAL_SMALL, QWEN3, VAE_FLUX2
from modules.models.families.family import (
    ExternalTextEncoder,
    ExternalVae,
    Latents,
    LoraBase,
    LoraNaming,
    ModelFamily,
    context_width,
)
from modules.models.families.flux2.denoiser import DENOISER
from modules.models.families.flux2.layout import (
    DEV_ENCODER_PREFIX,
    DEV_FOLDER,
    ENCODER_PREFIX,
    FOLDER,
    LARGER_ENCODER,
)
from modules.models.families.language_model import read_by
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.llm import HiddenStates, head_component
from modules.models.text_encoders.llm_texts import LlmRecipe
from modules.models.text_encoders.tekken import tekken_tokenizer
from modules.models.text_encoders.writing import ANSWER, NO_THOUGHTS, Writing

TOKENS = 512
CONFIG = "flux2-klein.yaml"
STATES = HiddenStates((9, 18, 27))
TEXTS = LlmRecipe(
    STATES,
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    padded_to=TOKENS,
)


ENCODER = ExternalTextEncoder("qwen", ENCODER_PREFIX, is_part=True, need=QWEN3)
VAE = ExternalVae(VAE_FLUX2, ("flux2", "flux.2"))
LATENTS = Latents("taef2", "vaeapprox-f2", VAE)
STYLE = (
    "It reads one paragraph of 30 to 80 words in plain sentences: the subject first, then what it does, the style, the "
    "place, the light; no lists of tags."
)
KLEIN = ModelFamily(
    signs=FLUX2_KLEIN,
    denoiser=DENOISER,
    texts=read_by(
        TEXTS,
        ENCODER,
        TokenCounting("qwen3", TOKENS),
        TOKENS,
        context_width,
        writing=Writing(partial(head_component, prefix=ENCODER_PREFIX, states=STATES), STYLE, ANSWER + NO_THOUGHTS),
    ),
    latents=LATENTS,
    folder=FOLDER,
    config_name=CONFIG,
    aliases=((LARGER_ENCODER, ENCODER_PREFIX),),
    lora_base=LoraBase("flux_2_klein", "Flux.2-klein", LoraNaming.KOHYA_FUSED, part="transformer"),
)
DEV_TEXTS = LlmRecipe(
    HiddenStates((10, 20, 30)),
    "[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured responses focusing on "
    "object relationships, object\nattribution and actions without speculation.[/SYSTEM_PROMPT][INST]{}[/INST]",
    padded_to=TOKENS,
    tokenizer=tekken_tokenizer,
    pads_left=True,
)
DEV_ENCODER = ExternalTextEncoder("mistral", DEV_ENCODER_PREFIX, is_part=True, need=MISTRAL_SMALL, forms="safetensors")
ROPE_THETA = 1e9
DEV = ModelFamily(
    signs=FLUX2_DEV,
    denoiser=DENOISER,
    texts=read_by(DEV_TEXTS, DEV_ENCODER, TokenCounting("tekken", TOKENS), TOKENS, context_width, theta=ROPE_THETA),
    latents=LATENTS,
    folder=DEV_FOLDER,
    config_name=CONFIG,
    lora_base=LoraBase("flux2_dev", "Flux.2-dev", LoraNaming.KOHYA_FUSED, part="transformer"),
)
