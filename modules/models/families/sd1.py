"""Stable Diffusion 1.x: one CLIP-L text model, cross-attention on its last hidden states, eps prediction."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

from modules.errors import CheckpointError
from modules.models.architecture import LdmArchitecture, UNetArchitecture, VaeArchitecture
from modules.models.families.family import FAMILIES, Component
from modules.models.keymaps import clip_text, ldm_unet, ldm_vae
from modules.models.ldm_upsample import use_ldm_upsampling
from modules.models.tensor_file import TensorEntry

IGNORED = re.compile(
    r"^model_ema\.|^(alphas|betas|sqrt|log_one_minus|posterior|logvar|scale_factor|lvlb_weights)[a-z0-9_]*$"
    r"|^first_stage_model\.loss\.|\.position_ids$|^cond_stage_model\.(logit_scale|text_projection)"
)
CHANNELS_PER_HEAD = 64  # of CLIP's text towers
NORM_GROUPS = 32


class StableDiffusion1:
    """The family's entry."""

    label = "SD 1.x"
    is_large = False
    config_name = "v1-inference.yaml"

    def detects(self, header: Mapping[str, TensorEntry]) -> bool:
        has_unet = f"{ldm_unet.PREFIX}.input_blocks.0.0.weight" in header
        return has_unet and not any(key.startswith(("conditioner.", "cond_stage_model.model.")) for key in header)

    def components(
        self, header: Mapping[str, TensorEntry], architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        has_level = not any(key.startswith(f"{clip_text.PREFIX}.embeddings.") for key in header)
        unet, vae = architecture.unet, architecture.vae
        text_config = _text_config(header, architecture, has_level, config_folders)
        with torch.device("meta"):
            return (
                Component(
                    "text_encoder",
                    CLIPTextModel(text_config),
                    clip_text.clip_text_keymap(has_level),
                    (f"{clip_text.PREFIX}.",),
                    "It may be a UNet-only file: choose a full checkpoint.",
                ),
                Component(
                    "unet",
                    build_unet(unet),
                    ldm_unet.unet_keymap(
                        ldm_unet.UNetLayout(unet.levels, unet.blocks_per_level, unet.attention_levels)
                    ),
                    (f"{ldm_unet.PREFIX}.",),
                    "It may be a VAE or a text encoder: choose a full checkpoint.",
                ),
                Component(
                    "vae",
                    build_vae(vae),
                    ldm_vae.vae_keymap(vae.levels, vae.blocks_per_level),
                    (f"{ldm_vae.PREFIX}.",),
                    "It may be a pruned file without a VAE: choose a full checkpoint.",
                ),
            )

    def is_ignored(self, key: str) -> bool:
        return IGNORED.search(key) is not None


def build_unet(architecture: UNetArchitecture) -> UNet2DConditionModel:
    """An uninitialised UNet of these sizes; wrap the call in `torch.device("meta")` to allocate nothing."""
    attention = architecture.attention_levels
    levels = range(architecture.levels)
    unet = UNet2DConditionModel(
        in_channels=architecture.in_channels,
        out_channels=architecture.out_channels,
        block_out_channels=architecture.widths,
        layers_per_block=architecture.blocks_per_level,
        down_block_types=tuple("CrossAttnDownBlock2D" if i in attention else "DownBlock2D" for i in levels),
        up_block_types=tuple("CrossAttnUpBlock2D" if i in attention else "UpBlock2D" for i in reversed(levels)),
        cross_attention_dim=architecture.context_width,
        attention_head_dim=architecture.heads,  # diffusers' old name: it means the number of heads
        transformer_layers_per_block=architecture.transformer_depth,
        norm_num_groups=NORM_GROUPS,
    )
    return use_ldm_upsampling(unet)


def build_vae(architecture: VaeArchitecture) -> AutoencoderKL:
    """An uninitialised autoencoder of these sizes; see `build_unet`."""
    return AutoencoderKL(
        in_channels=architecture.in_channels,
        out_channels=architecture.out_channels,
        latent_channels=architecture.latent_channels,
        block_out_channels=architecture.widths,
        layers_per_block=architecture.blocks_per_level,
        down_block_types=("DownEncoderBlock2D",) * architecture.levels,
        up_block_types=("UpDecoderBlock2D",) * architecture.levels,
        norm_num_groups=NORM_GROUPS,
    )


def _text_config(
    header: Mapping[str, TensorEntry],
    architecture: LdmArchitecture,
    has_level: bool,
    config_folders: tuple[Path, ...],
) -> CLIPTextConfig:
    """From the folder that the YAML names where that exists, else from the tensors: heads = width / 64."""
    if architecture.text_config_folder:
        for folder in config_folders:
            config_file = folder / architecture.text_config_folder / "config.json"
            if config_file.is_file():
                return _text_config_from(config_file)
    prefix = f"{clip_text.PREFIX}.text_model" if has_level else clip_text.PREFIX
    try:
        vocabulary, width = header[f"{prefix}.embeddings.token_embedding.weight"].shape
        positions, _ = header[f"{prefix}.embeddings.position_embedding.weight"].shape
        mlp_width, _ = header[f"{prefix}.encoder.layers.0.mlp.fc1.weight"].shape
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"no text encoder found (looked for {prefix}.*). It may be a UNet-only file: choose a full checkpoint."
        ) from error
    layers = {key.split(".layers.")[1].split(".")[0] for key in header if key.startswith(f"{prefix}.encoder.layers.")}
    return CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=mlp_width,
        num_hidden_layers=len(layers),
        num_attention_heads=max(width // CHANNELS_PER_HEAD, 1),
        max_position_embeddings=positions,
        hidden_act="quick_gelu",
    )


def _text_config_from(config_file: Path) -> CLIPTextConfig:
    try:
        return CLIPTextConfig.from_dict(json.loads(config_file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{config_file.parent.name}/config.json cannot be used: {error}") from error


FAMILIES.add("sd1", StableDiffusion1())
