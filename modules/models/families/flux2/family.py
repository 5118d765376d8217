"""FLUX.2 klein 4B and 9B (Black Forest Labs 2026): a transformer whose blocks share their modulation, which predicts a
flow, with a language model as its text encoder. It edits: an image to start from is shown to it as a reference."""

from functools import partial

from modules.models.detection.families import FLUX2_KLEIN, QWEN3, VAE_FLUX2
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
from modules.models.families.flux2.layout import ENCODER_PREFIX, FOLDER, LARGER_ENCODER
from modules.models.families.language_model import read_by
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.llm import HiddenStates, head_component
from modules.models.text_encoders.llm_texts import LlmRecipe
from modules.models.text_encoders.writing import ANSWER, NO_THOUGHTS, Writing

TOKENS = 512
STATES = HiddenStates((9, 18, 27))
TEXTS = LlmRecipe(
    STATES,
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    padded_to=TOKENS,
)


ENCODER = ExternalTextEncoder("qwen", ENCODER_PREFIX, is_part=True, need=QWEN3)
VAE = ExternalVae(VAE_FLUX2, ("flux2", "flux.2"))
STYLE = (
    "It reads one paragraph of 30 to 80 words in plain sentences: the subject first, then what it does, the style, the "
    "place, the light; no lists of tags."
)
FAMILY = ModelFamily(
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
    latents=Latents("taef2", "vaeapprox-f2", VAE),
    folder=FOLDER,
    config_name="flux2-klein.yaml",
    aliases=((LARGER_ENCODER, ENCODER_PREFIX),),
    lora_base=LoraBase("flux_2_klein", "Flux.2-klein", LoraNaming.KOHYA_FUSED, part="transformer"),
)
