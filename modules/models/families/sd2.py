"""Stable Diffusion 2.x: OpenCLIP ViT-H, of which the last but one layer counts; eps or v prediction.

Nothing in a file tells eps from v, and the networks are of the same shape, so without a YAML or metadata one run of
the network tells. With 9 input channels it is the inpainting model.
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
    Header,
    NetworkInputSizes,
    TextTowerRecipe,
)
from modules.models.families.ldm_parts import (
    V_KEY,
    input_channels,
    is_left_over,
    prediction_in,
    run_unet,
    unet_component,
    unet_inputs,
    vae_component,
)
from modules.models.families.text_parts import open_clip_component
from modules.models.keymaps import ldm_unet

TEXT_PREFIX = "cond_stage_model.model"
TURBO_TEXT_PREFIX = "conditioner.embedders.0.model"  # in the files of SD-Turbo
INPAINTING_CHANNELS = 9
INPUT_CHANNELS = (4, INPAINTING_CHANNELS)


class StableDiffusion2:
    """The family's entry."""

    label = "SD 2.x"
    is_large = False
    config_name = "v2-inference.yaml"
    v_latent_side: int | None = 96  # 768 px
    tiny_vae = "taesd"
    recipe = ConditioningRecipe((TextTowerRecipe("text_encoder", layer_from_end=2, pad_id=0),))

    def detects(self, header: Header) -> bool:
        if input_channels(header) not in INPUT_CHANNELS or f"{ldm_unet.PREFIX}.label_emb.0.0.weight" in header:
            return False
        return any(f"{prefix}.ln_final.weight" in header for prefix in (TEXT_PREFIX, TURBO_TEXT_PREFIX))

    def prediction_type(self, header: Header, metadata: Mapping[str, str]) -> str | None:
        if V_KEY in header:
            return "v_prediction"
        if input_channels(header) == INPAINTING_CHANNELS:
            return "epsilon"
        return prediction_in(metadata) or "probe"

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        del config_folders
        prefix = TEXT_PREFIX if f"{TEXT_PREFIX}.ln_final.weight" in header else TURBO_TEXT_PREFIX
        return (
            open_clip_component("text_encoder", header, prefix, with_projection=False),
            unet_component(architecture.unet_sizes),
            vae_component(architecture.vae),
        )

    def run(self, network: Any, x: Tensor, timesteps: Tensor, crossattn: Tensor, vector: Tensor | None) -> Tensor:
        return run_unet(network, x, timesteps, crossattn, vector)

    def input_sizes(self, network: Any) -> NetworkInputSizes:
        return unet_inputs(network)

    def is_ignored(self, key: str) -> bool:
        return is_left_over(key) or key.endswith(".text_projection.weight")


FAMILIES.add("sd2", StableDiffusion2())
