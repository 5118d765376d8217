"""Qwen-Image (Wu et al. 2025, arXiv:2508.02324): a transformer with a stream of the image and one of the text that
predicts a flow, and reads the last state of a language model that sees."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modules.models.families.architecture import LdmArchitecture, NoiseScheduleArchitecture
from modules.models.families.denoiser_context import ModelInputs
from modules.models.families.family import (
    Conditioning,
    DenoiserInputSizes,
    ExternalTextEncoder,
    ExternalVae,
    GuidanceType,
    LoraBase,
    LoraNaming,
    Make,
    UsualSettings,
    text_inputs,
)
from modules.models.families.flow_family import DENOISER, QWEN_IMAGE_VAE, FlowFamily, vae_component
from modules.models.families.packing import PATCH
from modules.models.families.qwen_image.layout import ENCODER_PREFIX, FOLDER, SIGNS
from modules.models.families.qwen_image.transformer import (
    run_transformer,
    text_width,
    transformer_component,
    transformer_inputs,
)
from modules.models.files.tensor_source import TensorSource
from modules.models.names.component import Component, Header, built
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.encoding import TextParts
from modules.models.text_encoders.llm import HiddenStates, llm_component
from modules.models.text_encoders.llm_texts import DESCRIBED, DESCRIBED_SYSTEM_TOKENS, LlmRecipe
from modules.sampling.flow import FlowSchedule, NoiseLevels
from modules.settings.values import Settings

TOKENS = 512
TEXTS = LlmRecipe(
    HiddenStates((-1,)), DESCRIBED, most=DESCRIBED_SYSTEM_TOKENS + TOKENS, dropped=DESCRIBED_SYSTEM_TOKENS
)
ENCODER = ExternalTextEncoder(
    "qwen_2.5_vl_7b",
    ENCODER_PREFIX,
    is_part=True,
    type="vision_qwen2",
    width=text_width,
    title="Qwen2.5-VL-7B (3584 wide, 16.6 GB in 16 bits, 9.4 GB in fp8)",
)
SHIFTS = ((256, 0.5), (8192, 0.9))
"""Tokens of an image, and the exponent of its shift: between and beyond them a straight line."""
TERMINAL = 0.02
"""The noise level that the last step begins at."""
DISTILLED, DISTILLED_SHIFT = ("lightning", "turbo", "rapid"), 3.0
"""In the names of models for few steps, and how they were shifted at any size."""


class QwenImage(FlowFamily):
    """A `ModelFamily`."""

    label = "Qwen-Image"
    leaves_fp16 = True
    config_name = "qwen-image.yaml"
    tiny_vae = "taew2_1"
    approx_vae = "vaeapprox-wan21"
    external_encoders = (ENCODER,)
    lora_base: LoraBase | None = LoraBase("qwen_image", "Qwen-Image", LoraNaming.DOTTED, part="transformer")
    external_vae: ExternalVae | None = QWEN_IMAGE_VAE
    counting = TokenCounting("qwen3", TOKENS)
    context_tokens = 64
    latent_multiple = PATCH
    folder = FOLDER
    aliases = (
        (f"{ENCODER_PREFIX}.model.language_model", f"{ENCODER_PREFIX}.model"),
        (f"{ENCODER_PREFIX}.model.visual", f"{ENCODER_PREFIX}.visual"),
    )

    def detects(self, header: Header) -> bool:
        """See `ModelFamily`, as all methods here."""
        return all(f"{DENOISER}{sign}" in header for sign in SIGNS)

    def detects_denoiser(self, header: Header) -> bool:
        return self.detects(header)

    def as_told(self, architecture: LdmArchitecture, file: TensorSource) -> LdmArchitecture:
        if not _is_distilled(file.path.name):
            return architecture
        schedule = replace(architecture.noise_schedule, flow_shift=DISTILLED_SHIFT, shifts_by_size=False)
        return replace(architecture, noise_schedule=schedule)

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        del config_folders
        return built(
            header,
            partial(
                llm_component, "text_encoder", header, ENCODER_PREFIX, TEXTS.states, ENCODER.hint, text_width(header)
            ),
            partial(self.denoiser_components, header, architecture),
            partial(vae_component, architecture.autoencoder, header, QWEN_IMAGE_VAE),
        )

    def denoiser_components(self, header: Header, architecture: LdmArchitecture) -> tuple[Component, ...]:
        del architecture
        return (transformer_component(header),)

    def conditioning(self, parts: TextParts) -> Conditioning:
        return partial(TEXTS.conditioner, parts)

    def noise_levels(
        self, trained: NoiseScheduleArchitecture, settings: Settings, latent_size: tuple[int, int]
    ) -> NoiseLevels:
        """A shift that follows the size, and a schedule that ends above 0, unless the model's YAML has one shift."""
        if not trained.shifts_by_size:
            return super().noise_levels(trained, settings, latent_size)
        tokens = math.prod(math.ceil(side / PATCH) for side in latent_size)
        (few, low), (many, high) = SHIFTS
        exponent = low + (high - low) * (tokens - few) / (many - few)
        return FlowSchedule(math.exp(exponent), trained.timesteps, TERMINAL)

    def guidance(self, denoiser: Any) -> GuidanceType:
        return GuidanceType.CFG_RESCALED

    def run(self, denoiser: Any, inputs: ModelInputs) -> Tensor:
        return run_transformer(denoiser, inputs)

    def example_inputs(self, denoiser: Any, shape: tuple[int, int, int], dtype: torch.dtype, make: Make) -> ModelInputs:
        return text_inputs(transformer_inputs(denoiser), self.context_tokens, shape, dtype, make)

    def usual_settings(self, denoiser: Any, name: str) -> UsualSettings | None:
        return UsualSettings(steps=8) if _is_distilled(name) else UsualSettings(steps=30, cfg_scale=4.0)

    def is_ignored(self, key: str) -> bool:
        """Also a mark of models that edit images: without one to edit it means nothing."""
        return key == f"{DENOISER}__index_timestep_zero__" or super().is_ignored(key)

    def input_sizes(self, denoiser: Any) -> DenoiserInputSizes:
        return transformer_inputs(denoiser)


def _is_distilled(name: str) -> bool:
    return any(word in name.lower() for word in DISTILLED)
