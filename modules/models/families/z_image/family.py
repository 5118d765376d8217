"""Z-Image and Z-Image Turbo (Tongyi-MAI 2025, arXiv:2511.22699): a transformer with one stream of text and image that
predicts a flow, with a language model as its text encoder."""

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
from modules.models.families.flow_family import DENOISER, FlowFamily, vae_component
from modules.models.families.z_image.layout import ENCODER_PREFIX, FOLDER, SIGN, transformer_rows
from modules.models.families.z_image.transformer import (
    MOST_TOKENS,
    context_width,
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

ENCODER = ExternalTextEncoder(
    "qwen3_4b",
    ENCODER_PREFIX,
    is_part=True,
    type="llm",
    width=context_width,
    title="Qwen3-4B (2560 wide, 8.0 GB in 16 bits)",
)
FLUX_VAE = ExternalVae(
    "AutoencoderKL", 16, ("ae", "flux", "z_image", "z-image"), "the VAE of FLUX.1 (ae.safetensors, 0.3 GB)"
)
LAYERS = "layers."
"""Where the blocks that LoRAs are trained for are; trainers leave the refiners in front of them alone."""
TEXTS = LlmRecipe(HiddenStates((-2,)), "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", most=MOST_TOKENS)


class ZImage(FlowFamily):
    """A `ModelFamily`."""

    label = "Z-Image"
    leaves_fp16 = True
    config_name = "z-image.yaml"
    tiny_vae = "taef1"
    approx_vae = "vaeapprox-f1"
    external_encoders = (ENCODER,)
    lora_base: LoraBase | None = LoraBase("z_image", "Z-Image", LoraNaming.DOTTED, (LAYERS,), "transformer")
    external_vae: ExternalVae | None = FLUX_VAE
    counting = TokenCounting("qwen3", 512)
    context_tokens = 64
    folder = FOLDER

    def row_map_of(self, header: Header) -> RowMap | None:
        """See `ModelFamily`, as all methods here."""
        return transformer_rows(header)

    def detects(self, header: Header) -> bool:
        return f"{DENOISER}{SIGN}" in header

    def detects_denoiser(self, header: Header) -> bool:
        return f"{DENOISER}{SIGN}" in header

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        del config_folders
        return built(
            header,
            partial(
                llm_component, "text_encoder", header, ENCODER_PREFIX, TEXTS.states, ENCODER.hint, context_width(header)
            ),
            partial(self.denoiser_components, header, architecture),
            partial(vae_component, architecture.autoencoder, header, FLUX_VAE),
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
        return UsualSettings(steps=8) if "turbo" in name.lower() else UsualSettings(steps=28, cfg_scale=4.0)

    def input_sizes(self, denoiser: Any) -> DenoiserInputSizes:
        return transformer_inputs(denoiser)
