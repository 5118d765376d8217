"""Krea 2 raw and turbo (Krea 2026): a transformer with one stream of text and image that predicts a flow, and reads
twelve layers of a language model."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modules.models.families.architecture import LdmArchitecture
from modules.models.families.denoiser_context import ModelInputs
from modules.models.families.family import (
    Conditioning,
    DenoiserInputSizes,
    ExternalTextEncoder,
    ExternalVae,
    Make,
    UsualSettings,
    text_inputs,
)
from modules.models.families.flow_family import DENOISER, QWEN_IMAGE_VAE, FlowFamily, vae_component
from modules.models.families.krea2.layout import ENCODER_PREFIX, FOLDER, SIGN
from modules.models.families.krea2.transformer import (
    context_width,
    run_transformer,
    text_width,
    transformer_component,
    transformer_inputs,
)
from modules.models.families.packing import PATCH
from modules.models.names.component import Component, Header, built
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.encoding import TextParts
from modules.models.text_encoders.llm import HiddenStates, llm_component
from modules.models.text_encoders.llm_texts import DESCRIBED, DESCRIBED_SYSTEM_TOKENS, LlmRecipe

TOKENS = 512
ROPE_THETA = 5_000_000.0
TEXTS = LlmRecipe(
    HiddenStates(tuple(range(2, 36, 3))),
    DESCRIBED,
    most=DESCRIBED_SYSTEM_TOKENS + TOKENS,
    keeps_end=True,
    dropped=DESCRIBED_SYSTEM_TOKENS,
)
ENCODER = ExternalTextEncoder(
    "qwen3vl_4b",
    ENCODER_PREFIX,
    is_part=True,
    type="vision_llm",
    width=text_width,
    title="Qwen3-VL-4B (2560 wide, 8.9 GB in 16 bits)",
)
SCALE = 5.5
"""Guidance of 4.5 as the original counts it, from 0 on."""


class Krea2(FlowFamily):
    """A `ModelFamily`."""

    label = "Krea 2"
    leaves_fp16 = True
    config_name = "krea2.yaml"
    tiny_vae = "taew2_1"
    approx_vae = "vaeapprox-wan21"
    external_encoders = (ENCODER,)
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
        return f"{DENOISER}{SIGN}" in header

    def detects_denoiser(self, header: Header) -> bool:
        return f"{DENOISER}{SIGN}" in header

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        del config_folders
        width = context_width(header)
        hint = ENCODER.hint
        return built(
            header,
            partial(llm_component, "text_encoder", header, ENCODER_PREFIX, TEXTS.states, hint, width, theta=ROPE_THETA),
            partial(self.denoiser_components, header, architecture),
            partial(vae_component, architecture.autoencoder, header, QWEN_IMAGE_VAE),
        )

    def denoiser_components(self, header: Header, architecture: LdmArchitecture) -> tuple[Component, ...]:
        del architecture
        return (transformer_component(header),)

    def conditioning(self, parts: TextParts) -> Conditioning:
        return partial(TEXTS.conditioner, parts)

    def run(self, denoiser: Any, inputs: ModelInputs) -> Tensor:
        return run_transformer(denoiser, inputs)

    def example_inputs(self, denoiser: Any, shape: tuple[int, int, int], dtype: torch.dtype, make: Make) -> ModelInputs:
        return text_inputs(transformer_inputs(denoiser), self.context_tokens, shape, dtype, make)

    def usual_settings(self, denoiser: Any, name: str) -> UsualSettings | None:
        """Turbo was distilled, which its name tells."""
        return UsualSettings(steps=8) if "turbo" in name.lower() else UsualSettings(steps=28, cfg_scale=SCALE)

    def input_sizes(self, denoiser: Any) -> DenoiserInputSizes:
        return transformer_inputs(denoiser)
