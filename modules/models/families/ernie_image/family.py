"""ERNIE-Image and ERNIE-Image Turbo (Baidu 2026): a transformer with one stream of image and text that predicts a flow,
with a language model of Mistral as its text encoder and the VAE of FLUX.2."""

from functools import partial

from modules.models.detection.families import ERNIE_IMAGE, MINISTRAL
from modules.models.families.ernie_image.denoiser import DENOISER
from modules.models.families.ernie_image.layout import ENCODER_PREFIX, FOLDER
from modules.models.families.family import (
    FLUX2_VAE,
    ExternalTextEncoder,
    Latents,
    LoraBase,
    LoraNaming,
    ModelFamily,
    Texts,
)
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.llm import HiddenStates, llm_component
from modules.models.text_encoders.llm_texts import LlmRecipe
from modules.models.text_encoders.tekken import tekken_tokenizer

TOKENS = 2048
LAYERS = "layers."
TEXTS = LlmRecipe(HiddenStates((-2,)), most=TOKENS, tokenizer=tekken_tokenizer)
ENCODER = ExternalTextEncoder("ministral", ENCODER_PREFIX, is_part=True, need=MINISTRAL, forms="safetensors")
FAMILY = ModelFamily(
    signs=ERNIE_IMAGE,
    denoiser=DENOISER,
    texts=Texts(
        encoders=(
            lambda header, *_: llm_component(
                "text_encoder", header, ENCODER_PREFIX, TEXTS.states, ENCODER.hint, ENCODER.width(header)
            ),
        ),
        conditioning=lambda parts: partial(TEXTS.conditioner, parts),
        tokens=64,
        counting=TokenCounting("tekken", TOKENS),
        external=(ENCODER,),
    ),
    latents=Latents("taef2", "vaeapprox-f2", FLUX2_VAE),
    folder=FOLDER,
    config_name="ernie-image.yaml",
    leaves_fp16=True,
    lora_base=LoraBase("ernie_image", "ERNIE-Image", LoraNaming.DOTTED, (LAYERS,), "transformer"),
)
