"""Qwen-Image (Wu et al. 2025, arXiv:2508.02324): a transformer with a stream of the image and one of the text that
predicts a flow, and reads the last state of a language model that sees."""

import math
import re
from dataclasses import replace
from functools import partial

from modules.models.detection.families import QWEN25_VL, QWEN_IMAGE
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
from modules.models.families.qwen_image.layout import EDIT_MARK, ENCODER_PREFIX, FOLDER
from modules.models.files.tensor_source import TensorSource
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
from modules.models.text_encoders.vision import EDITED_PIXELS, for_editing, tower_component
from modules.models.text_encoders.writing import Writing
from modules.sampling.flow import FlowSchedule, NoiseLevels
from modules.settings.values import Settings

TOKENS = 512
TEXTS = LlmRecipe(
    HiddenStates((-1,)), DESCRIBED, most=DESCRIBED_SYSTEM_TOKENS + TOKENS, dropped=DESCRIBED_SYSTEM_TOKENS
)
ENCODER = ExternalTextEncoder("qwen_2.5_vl_7b", ENCODER_PREFIX, is_part=True, need=QWEN25_VL)
STYLE = (
    "It reads one paragraph of 60 to 150 words in plain sentences, from the main subject to the details; words that "
    "the image is to show stand in quotes."
)
TOWER_HINT = (
    "Without it the prompt is read alone, and the image is seen by the denoiser only: use an encoder file that holds "
    "the tensors visual.* as well (qwen_2.5_vl_7b.safetensors in bf16 or fp8; GGUF files have none)."
)
SHIFTS = ((256, 0.5), (8192, 0.9))
"""Tokens of an image, and the exponent of its shift: between and beyond them a straight line."""
TERMINAL = 0.02
"""The noise level that the last step begins at."""
DISTILLED_SHIFT = 3.0
"""The shift of models for few steps, at any size."""
EDITED = replace(
    TEXTS,
    template=(
        "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
        "background), then explain how the user's text instruction should alter or modify the image. Generate a new "
        "image that meets the user's requirements while maintaining consistency with the original input where "
        "appropriate.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    ),
    most=1024,
    dropped=64,
    images=ImageWords("Picture {}: " + SEEN),
)
"""How images to edit are seen with their text, and by the first edition, which was trained on one image alone."""
FIRST_PIXELS = 1024 * 1024
FIRST_EDITED = replace(EDITED, images=ImageWords(SEEN, partial(for_editing, area=FIRST_PIXELS)))
LATER_EDITIONS = re.compile(r"25\d\d|plus|rapid", re.IGNORECASE)


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


def _conditioner(parts: TextParts, request: TextRequest) -> LlmConditioner:
    """Read texts alone as Qwen-Image does, and with images as its editions for editing do."""
    if not request.images:
        return TEXTS.conditioner(parts, request)
    return _edited(parts.checkpoint.name, len(request.images)).conditioner(parts, request)


def _edited(name: str, count: int) -> LlmRecipe:
    return FIRST_EDITED if count == 1 and not LATER_EDITIONS.search(name) else EDITED


def _shown_pixels(name: str, count: int) -> int:
    return FIRST_PIXELS if _edited(name, count) is FIRST_EDITED else EDITED_PIXELS


FAMILY = ModelFamily(
    signs=QWEN_IMAGE,
    denoiser=DENOISER,
    texts=read_by(
        TEXTS,
        ENCODER,
        TokenCounting("qwen3", TOKENS),
        conditioner=_conditioner,
        writing=Writing(partial(head_component, prefix=ENCODER_PREFIX, states=TEXTS.states), STYLE),
        tower=partial(tower_component, prefix=ENCODER_PREFIX, hint=TOWER_HINT),
        shown_pixels=_shown_pixels,
    ),
    latents=Latents("taew2_1", "vaeapprox-wan21", QWEN_IMAGE_VAE, multiple=PATCH),
    noise=Noise(levels=levels_by_size, told=_told),
    folder=FOLDER,
    config_name="qwen-image.yaml",
    leaves_fp16=True,
    aliases=vision_llm_aliases(ENCODER_PREFIX),
    lora_base=LoraBase("qwen_image", "Qwen-Image", LoraNaming.DOTTED, part="transformer"),
    is_ignored=lambda key: key == EDIT_MARK or is_left_over(key),
)
