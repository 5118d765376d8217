"""ERNIE-Image and ERNIE-Image Turbo (Baidu 2026): a transformer with one stream of image and text that predicts a flow,
with a language model of Mistral as its text encoder and the VAE of FLUX.2."""

from modules.models.detection.families import ERNIE_IMAGE, MINISTRAL
from modules.models.families.ernie_image.denoiser import DENOISER
from modules.models.families.ernie_image.layout import ENCODER_PREFIX, FOLDER
from modules.models.families.family import (
    ExternalTextEncoder,
    Latents,
    LoraBase,
    LoraNaming,
    ModelFamily,
)
from modules.models.families.flux2.family import VAE
from modules.models.families.language_model import read_by
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.llm import HiddenStates
from modules.models.text_encoders.llm_texts import LlmRecipe
from modules.models.text_encoders.tekken import tekken_tokenizer

TOKENS = 2048
LAYERS = "layers."
TEXTS = LlmRecipe(HiddenStates((-2,)), most=TOKENS, tokenizer=tekken_tokenizer)
ENCODER = ExternalTextEncoder("ministral", ENCODER_PREFIX, is_part=True, need=MINISTRAL, forms="safetensors")
FAMILY = ModelFamily(
    signs=ERNIE_IMAGE,
    denoiser=DENOISER,
    texts=read_by(TEXTS, ENCODER, TokenCounting("tekken", TOKENS)),
    latents=Latents("taef2", "vaeapprox-f2", VAE),
    folder=FOLDER,
    config_name="ernie-image.yaml",
    leaves_fp16=True,
    lora_base=LoraBase("ernie_image", "ERNIE-Image", LoraNaming.DOTTED, (LAYERS,), "transformer"),
)
