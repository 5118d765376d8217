"""FLUX.2 klein 4B and 9B (Black Forest Labs 2026): a transformer whose blocks share their modulation, which predicts a
flow, with a language model as its text encoder. It edits: an image to start from is shown to it as a reference."""

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
    LoraBase,
    LoraNaming,
    Make,
    UsualSettings,
    text_inputs,
)
from modules.models.families.flow_family import FlowFamily, context_width, vae_component
from modules.models.families.flux2.layout import (
    ENCODER_PREFIX,
    FOLDER,
    LARGER_ENCODER,
    is_transformer,
    transformer_rows,
)
from modules.models.families.flux2.transformer import (
    run_transformer,
    transformer_component,
    transformer_inputs,
)
from modules.models.names.component import Component, Header, built
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.encoding import TextParts
from modules.models.text_encoders.llm import HiddenStates, llm_component
from modules.models.text_encoders.llm_texts import LlmRecipe

TOKENS = 512
STATES = HiddenStates((9, 18, 27))
TEXTS = LlmRecipe(
    STATES,
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    padded_to=TOKENS,
)


def _encoder_width(header: Header) -> int | None:
    width = context_width(header)
    return None if width is None else width // len(STATES.numbers)


ENCODER = ExternalTextEncoder(
    "qwen",
    ENCODER_PREFIX,
    is_part=True,
    type="llm",
    width=_encoder_width,
    title="Qwen3-4B (2560 wide, 8.0 GB in 16 bits) for klein 4B, or Qwen3-8B (4096 wide, 16.4 GB) for klein 9B",
)
VAE = ExternalVae("AutoencoderKLFlux2", 32, ("flux2", "flux.2"), "the VAE of FLUX.2 (flux2-vae.safetensors, 0.3 GB)")


class Flux2Klein(FlowFamily):
    """A `ModelFamily`."""

    label = "FLUX.2 klein"
    config_name = "flux2-klein.yaml"
    tiny_vae = "taef2"
    approx_vae = "vaeapprox-f2"
    external_encoders = (ENCODER,)
    lora_base: LoraBase | None = LoraBase("flux_2_klein", "Flux.2-klein", LoraNaming.KOHYA_FUSED, part="transformer")
    external_vae: ExternalVae | None = VAE
    counting = TokenCounting("qwen3", TOKENS)
    context_tokens = TOKENS
    folder = FOLDER
    aliases = ((LARGER_ENCODER, ENCODER_PREFIX),)

    def row_map_of(self, header: Header) -> RowMap | None:
        """See `ModelFamily`, as all methods here."""
        return transformer_rows(header)

    def detects(self, header: Header) -> bool:
        return is_transformer(header)

    def detects_denoiser(self, header: Header) -> bool:
        return is_transformer(header)

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        del config_folders
        return built(
            header,
            partial(llm_component, "text_encoder", header, ENCODER_PREFIX, STATES, ENCODER.hint, context_width(header)),
            partial(self.denoiser_components, header, architecture),
            partial(vae_component, architecture.autoencoder, header, VAE),
        )

    def denoiser_components(self, header: Header, architecture: LdmArchitecture) -> tuple[Component, ...]:
        del architecture
        return (transformer_component(header),)

    def conditioning(self, parts: TextParts) -> Conditioning:
        return partial(TEXTS.conditioner, parts)

    def run(self, denoiser: Any, inputs: ModelInputs) -> Tensor:
        return run_transformer(denoiser, inputs)

    def example_inputs(self, denoiser: Any, shape: tuple[int, int, int], dtype: torch.dtype, make: Make) -> ModelInputs:
        return text_inputs(transformer_inputs(denoiser), TOKENS, shape, dtype, make)

    def takes_references(self, denoiser: Any, name: str) -> bool:
        return True

    def usual_settings(self, denoiser: Any, name: str) -> UsualSettings | None:
        """Base models were not distilled, which their name tells."""
        return UsualSettings(steps=20, cfg_scale=4.0) if "base" in name.lower() else UsualSettings(steps=4)

    def input_sizes(self, denoiser: Any) -> DenoiserInputSizes:
        return transformer_inputs(denoiser)
