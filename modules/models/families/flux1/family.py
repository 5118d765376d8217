"""FLUX.1 (Black Forest Labs 2024): a transformer with two streams and then one, which predicts a flow.

Two families share it. FLUX.1 dev (with Krea, Fill and Kontext) was distilled from guidance and takes its scale as an
input; FLUX.1 schnell was distilled to few steps, has no such input and half the text tokens.
"""

from dataclasses import replace
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
    GuidanceType,
    LoraBase,
    LoraNaming,
    Make,
    UsualSettings,
    text_inputs,
)
from modules.models.families.flow_family import DENOISER, FlowFamily, context_width, vae_component
from modules.models.families.flux1.conditioning import CLIP, T5, ClipAndT5
from modules.models.families.flux1.folder import folder
from modules.models.families.flux1.layout import (
    CLIP_PREFIX,
    GUIDANCE,
    T5_PREFIX,
    is_transformer,
    transformer_rows,
)
from modules.models.families.flux1.transformer import (
    LATENT_CHANNELS,
    folded_mask,
    run_transformer,
    transformer_component,
    transformer_inputs,
)
from modules.models.names.component import Component, Header, built
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.clip import separate_clip_component
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.encoding import TextParts
from modules.models.text_encoders.t5 import t5_component


def _clip_width(header: Header) -> int | None:
    entry = header.get(f"{DENOISER}vector_in.in_layer.weight")
    return entry.shape[1] if entry is not None and len(entry.shape) == 2 else None


CLIP_ENCODER = ExternalTextEncoder(
    "clip_l",
    CLIP_PREFIX,
    is_part=True,
    type="clip",
    width=_clip_width,
    title="CLIP-L (768 wide, 0.25 GB in 16 bits)",
)
T5_ENCODER = ExternalTextEncoder(
    "t5xxl",
    T5_PREFIX,
    is_part=True,
    type="t5",
    width=context_width,
    title="T5-XXL (4096 wide, 9.8 GB in 16 bits, 4.9 GB in 8)",
)
VAE = ExternalVae("AutoencoderKL", 16, ("ae", "flux"), "the VAE of FLUX.1 (ae.safetensors, 0.3 GB)")


class Flux1(FlowFamily):
    """A `ModelFamily`: the models with the input for the distilled guidance, or those without."""

    tiny_vae = "taef1"
    approx_vae = "vaeapprox-f1"
    external_encoders = (CLIP_ENCODER, T5_ENCODER)
    lora_base: LoraBase | None = LoraBase("flux1", "flux-1-dev", LoraNaming.KOHYA_FUSED, part="transformer")
    external_vae: ExternalVae | None = VAE
    latent_multiple = 2

    def __init__(self, label: str, config_name: str, tokens: int, is_guided: bool) -> None:
        self.label, self.config_name = label, config_name
        self.context_tokens = tokens
        self.counting = TokenCounting("t5", tokens)
        self.folder = folder(label, is_guided)
        self._is_guided = is_guided

    def row_map_of(self, header: Header) -> RowMap | None:
        """See `ModelFamily`, as all methods here."""
        return transformer_rows(header) if self.detects(header) else None

    def detects(self, header: Header) -> bool:
        return is_transformer(header) and (f"{DENOISER}{GUIDANCE}" in header) == self._is_guided

    def detects_denoiser(self, header: Header) -> bool:
        return self.detects(header)

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        del config_folders
        return built(
            header,
            partial(separate_clip_component, CLIP, header, CLIP_PREFIX, CLIP_ENCODER.hint, _clip_width(header)),
            partial(t5_component, T5, header, T5_PREFIX, T5_ENCODER.hint, context_width(header)),
            partial(self.denoiser_components, header, architecture),
            partial(vae_component, architecture.autoencoder, header, VAE),
        )

    def denoiser_components(self, header: Header, architecture: LdmArchitecture) -> tuple[Component, ...]:
        del architecture
        return (transformer_component(header),)

    def conditioning(self, parts: TextParts) -> Conditioning:
        return ClipAndT5(parts, self.context_tokens)

    def guidance(self, denoiser: Any) -> GuidanceType:
        return GuidanceType.DISTILLED if denoiser.config.guidance_embeds else GuidanceType.CFG

    def run(self, denoiser: Any, inputs: ModelInputs) -> Tensor:
        return run_transformer(denoiser, inputs)

    def example_inputs(self, denoiser: Any, shape: tuple[int, int, int], dtype: torch.dtype, make: Make) -> ModelInputs:
        inputs = text_inputs(transformer_inputs(denoiser), self.context_tokens, shape, dtype, make)
        if denoiser.config.guidance_embeds:
            inputs = replace(inputs, extra={"guidance": make((shape[0],), torch.float32)})
        return inputs

    def takes_references(self, denoiser: Any, name: str) -> bool:
        """Kontext has the tensors of dev: its name tells."""
        return "kontext" in name.lower()

    def inpainting_input(self, masked: Tensor, mask: Tensor) -> Tensor:
        return folded_mask(masked, mask)

    def usual_settings(self, denoiser: Any, name: str) -> UsualSettings | None:
        """Fill and Kontext were distilled to other scales."""
        if not denoiser.config.guidance_embeds:
            return UsualSettings(steps=4)
        if self.input_sizes(denoiser).channels > LATENT_CHANNELS:
            return UsualSettings(steps=28, distilled_cfg_scale=30.0)
        return UsualSettings(steps=20, distilled_cfg_scale=2.5 if self.takes_references(denoiser, name) else 3.5)

    def input_sizes(self, denoiser: Any) -> DenoiserInputSizes:
        return transformer_inputs(denoiser)


SCHNELL = Flux1("FLUX.1 schnell", "flux1-schnell.yaml", tokens=256, is_guided=False)
DEV = Flux1("FLUX.1 dev", "flux1-dev.yaml", tokens=512, is_guided=True)
