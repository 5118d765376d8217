"""Stable Diffusion 3 and 3.5 (Esser et al. 2024, arXiv:2403.03206): a transformer that sees image and text side by
side and predicts a flow.

CLIP-L and OpenCLIP bigG stand side by side, filled up to the width of T5, whose tokens follow; without T5 zeros do, as
it was trained. Sizes, the second
attention and the normed queries and keys of SD3.5 follow from the tensors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from modules.models.architecture import LdmArchitecture
from modules.models.families.family import (
    FAMILIES,
    Component,
    ConditioningRecipe,
    DenoiserInputSizes,
    Header,
    TextTowerRecipe,
)
from modules.models.families.ldm_parts import is_left_over, vae_component
from modules.models.families.sd3_t5 import T5, is_unused_of_t5, t5_components
from modules.models.families.sd3_text import encoder_components
from modules.models.families.sd3_transformer import run_transformer, transformer_component, transformer_inputs
from modules.models.layouts.keymaps.mmdit import CLIP_L_PREFIX, SIGN

UNUSED = f"{CLIP_L_PREFIX}.text_projection."


class StableDiffusion3:
    """The family's entry."""

    label = "SD 3"
    is_large = True
    config_name = "sd3-inference.yaml"
    v_latent_side: int | None = None
    tiny_vae = "taesd3"
    recipe = ConditioningRecipe(
        (
            TextTowerRecipe("text_encoder", layer_from_end=2, final_norm=False, pooled=True),
            TextTowerRecipe("text_encoder_2", layer_from_end=2, final_norm=False, pad_id=0, pooled=True),
        ),
        joins_pooled=True,
        extra_encoder=T5,
    )

    def detects(self, header: Header) -> bool:
        return SIGN in header

    def prediction_type(self, header: Header, metadata: Mapping[str, str]) -> str | None:
        return "flow"

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        del config_folders
        return (
            *encoder_components(header),
            *t5_components(header),
            transformer_component(header, architecture.latent_side),
            vae_component(architecture.vae),
        )

    def run(self, adapter: Any, x: Tensor, timesteps: Tensor, crossattn: Tensor, vector: Tensor | None) -> Tensor:
        return run_transformer(adapter, x, timesteps, crossattn, vector)

    def input_sizes(self, adapter: Any) -> DenoiserInputSizes:
        return transformer_inputs(adapter)

    def is_ignored(self, key: str) -> bool:
        return is_left_over(key) or key.startswith(UNUSED) or is_unused_of_t5(key)


FAMILIES.add("sd3", StableDiffusion3())
