"""Chroma1 (lodestone-rock 2025): the blocks of FLUX.1 with T5 as the only text encoder, guided by a negative prompt; a
small network gives all blocks their modulation."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modules.models.families.architecture import LdmArchitecture
from modules.models.families.chroma.texts import MOST_TOKENS, T5, T5Texts
from modules.models.families.chroma.transformer import (
    SIGN,
    TABLE,
    is_transformer,
    run_transformer,
    transformer_component,
    transformer_inputs,
    transformer_rows,
)
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
from modules.models.families.flow_family import DENOISER, FlowFamily, context_width, vae_component
from modules.models.families.flux1.family import VAE
from modules.models.families.flux1.layout import T5_PREFIX
from modules.models.names.component import Component, Header, built
from modules.models.names.folder_layout import FIRST, FolderLayout, Names, Parts
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.encoding import TextParts
from modules.models.text_encoders.t5 import t5_component, t5_file_keymap

TRANSFORMER = "transformer"
ENCODER = ExternalTextEncoder(
    "t5xxl",
    T5_PREFIX,
    is_part=True,
    type="t5",
    width=context_width,
    title="T5-XXL (4096 wide, 9.8 GB in 16 bits, 4.9 GB in 8)",
)


def _transformer_names(header: Header) -> Names:
    return TABLE.folder_names(header, DENOISER)


def _t5_names(header: Header) -> Names:
    return t5_file_keymap(T5_PREFIX), {name: name for name in header}


def _detects(parts: Parts) -> bool:
    return SIGN in parts.get(TRANSFORMER, {})


FOLDER = FolderLayout(
    title="Chroma1",
    detects=_detects,
    names={TRANSFORMER: _transformer_names, FIRST: _t5_names},
    checks={},
    denoiser=TRANSFORMER,
    signs=(SIGN, "transformer_blocks.0.attn.to_q.weight"),
    is_flow=True,
    text_signs={FIRST: "shared.weight"},
)


class Chroma(FlowFamily):
    """A `ModelFamily`."""

    label = "Chroma1"
    config_name = "chroma1.yaml"
    tiny_vae = "taef1"
    approx_vae = "vaeapprox-f1"
    external_encoders = (ENCODER,)
    lora_base: LoraBase | None = LoraBase("chroma", "chroma", LoraNaming.KOHYA_FUSED, part="transformer")
    external_vae: ExternalVae | None = VAE
    counting = TokenCounting("t5", MOST_TOKENS)
    context_tokens = 128
    latent_multiple = 2
    folder = FOLDER

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
            partial(t5_component, T5, header, T5_PREFIX, ENCODER.hint, context_width(header)),
            partial(self.denoiser_components, header, architecture),
            partial(vae_component, architecture.autoencoder, header, VAE),
        )

    def denoiser_components(self, header: Header, architecture: LdmArchitecture) -> tuple[Component, ...]:
        del architecture
        return (transformer_component(header),)

    def conditioning(self, parts: TextParts) -> Conditioning:
        return T5Texts(parts)

    def run(self, denoiser: Any, inputs: ModelInputs) -> Tensor:
        return run_transformer(denoiser, inputs)

    def example_inputs(self, denoiser: Any, shape: tuple[int, int, int], dtype: torch.dtype, make: Make) -> ModelInputs:
        return text_inputs(transformer_inputs(denoiser), self.context_tokens, shape, dtype, make)

    def usual_settings(self, denoiser: Any, name: str) -> UsualSettings | None:
        """Flash was distilled, which its name tells."""
        return UsualSettings(steps=12) if "flash" in name.lower() else UsualSettings(steps=26, cfg_scale=4.0)

    def input_sizes(self, denoiser: Any) -> DenoiserInputSizes:
        return transformer_inputs(denoiser)
