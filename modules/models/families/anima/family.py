"""Anima (CircleStone Labs 2026): NVIDIA's Cosmos-Predict2 transformer (arXiv:2503.14492), which predicts a flow, behind
an adapter that joins a language model's states and T5's tokens."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modules.models.families.anima.conditioning import ADAPTER, ENCODER, STATES, AdaptedTexts
from modules.models.families.anima.layout import ENCODER_PREFIX, FOLDER, SIGN
from modules.models.families.anima.transformer import (
    TOKENS,
    adapter_component,
    run_transformer,
    source_width,
    transformer_component,
    transformer_inputs,
)
from modules.models.families.architecture import LdmArchitecture
from modules.models.families.denoiser_context import ModelInputs
from modules.models.families.family import (
    Conditioning,
    DenoiserInputSizes,
    ExternalTextEncoder,
    ExternalVae,
    LoraBase,
    LoraNaming,
    Make,
    text_inputs,
)
from modules.models.families.flow_family import QWEN_IMAGE_VAE, FlowFamily, vae_component
from modules.models.names.component import Component, Header, built
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.encoding import TextParts
from modules.models.text_encoders.llm import llm_component

QWEN = ExternalTextEncoder(
    "qwen3_06b",
    ENCODER_PREFIX,
    is_part=True,
    type="llm",
    width=source_width,
    title="Qwen3-0.6B base (1024 wide, 1.2 GB in 16 bits)",
)


class Anima(FlowFamily):
    """A `ModelFamily`."""

    label = "Anima"
    leaves_fp16 = True
    config_name = "anima.yaml"
    tiny_vae = "taew2_1"
    approx_vae = "vaeapprox-wan21"
    external_encoders = (QWEN,)
    lora_base: LoraBase | None = LoraBase("anima", "anima", LoraNaming.DOTTED_ORIGINAL, part="transformer")
    external_vae: ExternalVae | None = QWEN_IMAGE_VAE
    counting = TokenCounting("t5", TOKENS)
    context_tokens = TOKENS
    reads_weights = True
    folder = FOLDER

    def detects(self, header: Header) -> bool:
        """See `ModelFamily`, as all methods here."""
        return SIGN in header

    def detects_denoiser(self, header: Header) -> bool:
        return SIGN in header

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        del config_folders
        return built(
            header,
            partial(llm_component, ENCODER, header, ENCODER_PREFIX, STATES, QWEN.hint, source_width(header)),
            partial(self.denoiser_components, header, architecture),
            partial(vae_component, architecture.autoencoder, header, QWEN_IMAGE_VAE),
        )

    def denoiser_components(self, header: Header, architecture: LdmArchitecture) -> tuple[Component, ...]:
        del architecture
        return adapter_component(ADAPTER, header), transformer_component(header)

    def conditioning(self, parts: TextParts) -> Conditioning:
        return AdaptedTexts(parts)

    def run(self, denoiser: Any, inputs: ModelInputs) -> Tensor:
        return run_transformer(denoiser, inputs)

    def example_inputs(self, denoiser: Any, shape: tuple[int, int, int], dtype: torch.dtype, make: Make) -> ModelInputs:
        return text_inputs(transformer_inputs(denoiser), self.context_tokens, shape, dtype, make)

    def input_sizes(self, denoiser: Any) -> DenoiserInputSizes:
        return transformer_inputs(denoiser)
