"""Z-Image and Z-Image Turbo (Tongyi-MAI 2025, arXiv:2511.22699): a transformer with one stream of text and image that
predicts a flow, with a language model as its text encoder."""

from functools import partial

from modules.models.detection.families import QWEN3_4B, VAE_FLUX, Z_IMAGE
from modules.models.families.family import (
    ExternalTextEncoder,
    ExternalVae,
    Latents,
    LoraBase,
    LoraNaming,
    ModelFamily,
)
from modules.models.families.language_model import read_by
from modules.models.families.z_image.denoiser import DENOISER, MOST_TOKENS
from modules.models.families.z_image.layout import ENCODER_PREFIX, FOLDER
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.llm import HiddenStates, head_component
from modules.models.text_encoders.llm_texts import LlmRecipe
from modules.models.text_encoders.writing import ANSWER, NO_THOUGHTS, Writing

ENCODER = ExternalTextEncoder("qwen3_4b", ENCODER_PREFIX, is_part=True, need=QWEN3_4B)
FLUX_VAE = ExternalVae(VAE_FLUX, ("ae", "flux", "z_image", "z-image"))
LAYERS = "layers."
"""Where the blocks that LoRAs are trained for are; trainers leave the refiners in front of them alone."""
TEXTS = LlmRecipe(HiddenStates((-2,)), "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", most=MOST_TOKENS)
STYLE = (
    "It reads one paragraph of 80 to 200 words in plain sentences that name what is seen and where, without metaphors; "
    "words that the image is to show stand in quotes."
)
FAMILY = ModelFamily(
    signs=Z_IMAGE,
    denoiser=DENOISER,
    texts=read_by(
        TEXTS,
        ENCODER,
        TokenCounting("qwen3", 512),
        writing=Writing(
            partial(head_component, prefix=ENCODER_PREFIX, states=TEXTS.states), STYLE, ANSWER + NO_THOUGHTS
        ),
    ),
    latents=Latents("taef1", "vaeapprox-f1", FLUX_VAE),
    folder=FOLDER,
    config_name="z-image.yaml",
    leaves_fp16=True,
    lora_base=LoraBase("z_image", "Z-Image", LoraNaming.DOTTED, (LAYERS,), "transformer"),
)
