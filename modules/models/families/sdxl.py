"""Stable Diffusion XL and its refiner (Podell et al. 2023, arXiv:2307.01952).

The base model has CLIP-L and OpenCLIP ViT-bigG side by side, and adds the pooled text and embedded sizes to the time
embedding; the refiner has bigG alone and an aesthetic score in place of the target size. Pruned ones (SSD-1B) differ
in depth only, which the tensors tell; the inpainting model has 9 input channels.
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
    SizeVector,
    TextTowerRecipe,
)
from modules.models.families.ldm_parts import (
    V_KEY,
    is_left_over,
    prediction_in,
    run_unet,
    unet_component,
    unet_inputs,
    vae_component,
)
from modules.models.families.text_parts import clip_component, open_clip_component
from modules.models.keymaps import ldm_unet

CLIP_L_PREFIX = "conditioner.embedders.0.transformer"
BIG_G_PREFIX = "conditioner.embedders.1.model"
REFINER_BIG_G_PREFIX = "conditioner.embedders.0.model"
BIG_G = TextTowerRecipe("text_encoder_2", layer_from_end=2, final_norm=False, pad_id=0, pooled=True)


class StableDiffusionXL:
    """The base model's entry."""

    label = "SDXL"
    is_large = True
    config_name = "sd_xl_base.yaml"
    v_latent_side: int | None = None
    tiny_vae = "taesdxl"
    recipe = ConditioningRecipe(
        (
            TextTowerRecipe("text_encoder", layer_from_end=2, skips_by_wish=True, final_norm=False),
            BIG_G,
        ),
        SizeVector.SIZES,
        zero_empty_negative=True,
    )

    def detects(self, header: Header) -> bool:
        return f"{BIG_G_PREFIX}.ln_final.weight" in header

    def prediction_type(self, header: Header, metadata: Mapping[str, str]) -> str | None:
        return "v_prediction" if V_KEY in header else prediction_in(metadata)

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        return (
            clip_component("text_encoder", header, CLIP_L_PREFIX, architecture.text_config_folder, config_folders),
            open_clip_component("text_encoder_2", header, BIG_G_PREFIX, with_projection=True),
            unet_component(architecture.unet_sizes),
            vae_component(architecture.vae),
        )

    def run(self, network: Any, x: Tensor, timesteps: Tensor, crossattn: Tensor, vector: Tensor | None) -> Tensor:
        return run_unet(network, x, timesteps, crossattn, vector)

    def input_sizes(self, network: Any) -> NetworkInputSizes:
        return unet_inputs(network)

    def is_ignored(self, key: str) -> bool:
        return is_left_over(key)


class StableDiffusionXLRefiner:
    """The refiner's entry."""

    label = "SDXL refiner"
    is_large = True
    config_name = "sd_xl_refiner.yaml"
    v_latent_side: int | None = None
    tiny_vae = "taesdxl"
    recipe = ConditioningRecipe(
        (BIG_G,),
        SizeVector.AESTHETIC,
        zero_empty_negative=True,
    )

    def detects(self, header: Header) -> bool:
        has_vector = f"{ldm_unet.PREFIX}.label_emb.0.0.weight" in header
        return has_vector and f"{REFINER_BIG_G_PREFIX}.ln_final.weight" in header

    def prediction_type(self, header: Header, metadata: Mapping[str, str]) -> str | None:
        return "v_prediction" if V_KEY in header else prediction_in(metadata)

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        del config_folders
        return (
            open_clip_component("text_encoder_2", header, REFINER_BIG_G_PREFIX, with_projection=True),
            unet_component(architecture.unet_sizes),
            vae_component(architecture.vae),
        )

    def run(self, network: Any, x: Tensor, timesteps: Tensor, crossattn: Tensor, vector: Tensor | None) -> Tensor:
        return run_unet(network, x, timesteps, crossattn, vector)

    def input_sizes(self, network: Any) -> NetworkInputSizes:
        return unet_inputs(network)

    def is_ignored(self, key: str) -> bool:
        return is_left_over(key)


FAMILIES.add("sdxl", StableDiffusionXL())
FAMILIES.add("sdxl_refiner", StableDiffusionXLRefiner())
