"""Qwen-Image (Wu et al. 2025, arXiv:2508.02324): a transformer with a stream of the image and one of the text that
predicts a flow, and reads the last state of a language model that sees."""

import math
from dataclasses import replace

from modules.models.detection.families import PREFIX, QWEN25_VL, QWEN_IMAGE
from modules.models.families.architecture import LdmArchitecture, NoiseScheduleArchitecture
from modules.models.families.family import (
    QWEN_IMAGE_VAE,
    ExternalTextEncoder,
    Latents,
    LoraBase,
    LoraNaming,
    ModelFamily,
    Noise,
    flow_levels,
    is_left_over,
)
from modules.models.families.language_model import read_by
from modules.models.families.packing import PATCH
from modules.models.families.qwen_image.denoiser import DENOISER, is_distilled
from modules.models.families.qwen_image.layout import ENCODER_PREFIX, FOLDER
from modules.models.files.tensor_source import TensorSource
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.llm import HiddenStates
from modules.models.text_encoders.llm_texts import DESCRIBED, DESCRIBED_SYSTEM_TOKENS, LlmRecipe
from modules.sampling.flow import FlowSchedule, NoiseLevels
from modules.settings.values import Settings

TOKENS = 512
TEXTS = LlmRecipe(
    HiddenStates((-1,)), DESCRIBED, most=DESCRIBED_SYSTEM_TOKENS + TOKENS, dropped=DESCRIBED_SYSTEM_TOKENS
)
ENCODER = ExternalTextEncoder("qwen_2.5_vl_7b", ENCODER_PREFIX, is_part=True, need=QWEN25_VL)
SHIFTS = ((256, 0.5), (8192, 0.9))
"""Tokens of an image, and the exponent of its shift: between and beyond them a straight line."""
TERMINAL = 0.02
"""The noise level that the last step begins at."""
DISTILLED_SHIFT = 3.0
"""The shift of models for few steps, at any size."""
EDIT_MARK = f"{PREFIX}__index_timestep_zero__"
"""A tensor of models that edit images: without one to edit it means nothing."""


def _told(architecture: LdmArchitecture, file: TensorSource) -> LdmArchitecture:
    if not is_distilled(file.path.name):
        return architecture
    schedule = replace(architecture.noise_schedule, flow_shift=DISTILLED_SHIFT, shifts_by_size=False)
    return replace(architecture, noise_schedule=schedule)


def levels_by_size(
    trained: NoiseScheduleArchitecture, settings: Settings, latent_size: tuple[int, int], patch: int = PATCH
) -> NoiseLevels:
    """Return levels with a shift that follows the size and an end above 0, unless the model's YAML has one shift.
    `patch`: latents a side of a token."""
    if not trained.shifts_by_size:
        return flow_levels(trained, settings, latent_size)
    tokens = math.prod(math.ceil(side / patch) for side in latent_size)
    (few, low), (many, high) = SHIFTS
    exponent = low + (high - low) * (tokens - few) / (many - few)
    return FlowSchedule(math.exp(exponent), trained.timesteps, TERMINAL)


FAMILY = ModelFamily(
    signs=QWEN_IMAGE,
    denoiser=DENOISER,
    texts=read_by(TEXTS, ENCODER, TokenCounting("qwen3", TOKENS)),
    latents=Latents("taew2_1", "vaeapprox-wan21", QWEN_IMAGE_VAE, multiple=PATCH),
    noise=Noise(levels=levels_by_size, told=_told),
    folder=FOLDER,
    config_name="qwen-image.yaml",
    leaves_fp16=True,
    aliases=(
        (f"{ENCODER_PREFIX}.model.language_model", f"{ENCODER_PREFIX}.model"),
        (f"{ENCODER_PREFIX}.model.visual", f"{ENCODER_PREFIX}.visual"),
    ),
    lora_base=LoraBase("qwen_image", "Qwen-Image", LoraNaming.DOTTED, part="transformer"),
    is_ignored=lambda key: key == EDIT_MARK or is_left_over(key),
)
