"""Stable Diffusion 1.x: one CLIP-L text model, cross-attention on its last hidden states, eps prediction.

With 9 input channels it is the inpainting model, with 8 instruct-pix2pix (Brooks et al. 2022, arXiv:2211.09800).
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
from modules.models.families.text_parts import clip_component
from modules.models.keymaps import clip_text, ldm_unet

INPUT_CHANNELS = (4, 8, 9)


class StableDiffusion1:
    """The family's entry."""

    label = "SD 1.x"
    is_large = False
    config_name = "v1-inference.yaml"
    v_latent_side: int | None = None
    tiny_vae = "taesd"
    recipe = ConditioningRecipe((TextTowerRecipe("text_encoder"),))

    def detects(self, header: Header) -> bool:
        if input_channels(header) not in INPUT_CHANNELS or f"{ldm_unet.PREFIX}.label_emb.0.0.weight" in header:
            return False
        return not any(key.startswith(("conditioner.", "cond_stage_model.model.")) for key in header)

    def prediction_type(self, header: Header, metadata: Mapping[str, str]) -> str | None:
        return "v_prediction" if V_KEY in header else prediction_in(metadata)

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        folder = architecture.text_config_folder
        return (
            clip_component("text_encoder", header, clip_text.PREFIX, folder, config_folders),
            unet_component(architecture.unet_sizes),
            vae_component(architecture.vae),
        )

    def run(self, network: Any, x: Tensor, timesteps: Tensor, crossattn: Tensor, vector: Tensor | None) -> Tensor:
        return run_unet(network, x, timesteps, crossattn, vector)

    def input_sizes(self, network: Any) -> NetworkInputSizes:
        return unet_inputs(network)

    def is_ignored(self, key: str) -> bool:
        return is_left_over(key)


FAMILIES.add("sd1", StableDiffusion1())
