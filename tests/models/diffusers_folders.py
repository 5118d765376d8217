"""Tiny models of every family as folders in the diffusers layout, written by diffusers itself.

Names are those of diffusers' own conversion scripts, configurations those of the published folders in small, so that
the files are independent of our key maps.
"""

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.loaders import single_file_utils as convert
from safetensors.torch import save_file
from torch import Tensor

from tests.models.family_files import TINY_FAMILIES, family_tensors
from tests.models.original_keys import TextSizes

Tensors = dict[str, Tensor]
UNET = {
    "block_out_channels": [32, 64],
    "layers_per_block": 1,
    "sample_size": 16,
    "act_fn": "silu",
    "norm_num_groups": 32,
    "norm_eps": 1e-5,
    "out_channels": 4,
}
UNETS: dict[str, dict[str, Any]] = {
    "sd1": {
        "cross_attention_dim": 64,
        "attention_head_dim": 8,
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    },
    "sd2": {
        "cross_attention_dim": 128,
        "attention_head_dim": [1, 1],
        "use_linear_projection": True,
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    },
    "sdxl": {
        "cross_attention_dim": 192,
        "attention_head_dim": [1, 1],
        "use_linear_projection": True,
        "transformer_layers_per_block": [1, 2],
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
        "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 128 + 6 * 256,
    },
}
UNETS["sd1-inpainting"] = {**UNETS["sd1"], "in_channels": 9}
UNETS["sdxl-v"] = UNETS["sdxl"]
UNETS["sdxl-refiner"] = {
    **UNETS["sdxl"],
    "cross_attention_dim": 128,
    "projection_class_embeddings_input_dim": 128 + 5 * 256,
}
HALF = "fp16"


def unet_tensors(name: str) -> Tensors:
    """The tensors of `unet/`."""
    config = {"class_embed_type": None, **UNET, **UNETS[name]}
    if "addition_embed_type" not in config:
        config["addition_embed_type"] = None
    return dict(convert.convert_ldm_unet_checkpoint(family_tensors(name), config))


def vae_tensors(name: str) -> Tensors:
    """The tensors of `vae/`."""
    config = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    return dict(convert.convert_ldm_vae_checkpoint(family_tensors(name), config))


def text_tensors(name: str) -> dict[str, Tensors]:
    """The tensors of the text encoders by folder; SD2's without its last layer, as published."""
    tensors, sizes = family_tensors(name), TINY_FAMILIES[name]
    found: dict[str, Tensors] = {}
    if sizes.clip:
        prefix = f"{sizes.clip[0]}."
        found["text_encoder"] = {
            key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
        }
    if sizes.open_clip:
        prefix, text = sizes.open_clip
        model = _Width(text.width)
        named = dict(convert.convert_open_clip_checkpoint(model, tensors, f"{prefix}."))
        if name.startswith("sd2"):
            last = f"text_model.encoder.layers.{text.layers - 1}."
            named = {key: value for key, value in named.items() if not key.startswith((last, "text_projection"))}
        found["text_encoder" if name.startswith("sd2") else "text_encoder_2"] = named
    return {part: {key: value.contiguous() for key, value in part_of.items()} for part, part_of in found.items()}


def write_folder(
    parent: Path, name: str, title: str | None = None, shards: str = "10GB", variant: str | None = None
) -> Path:
    """Write the folder `title` (None: `name`) and give its path. `shards`: the size of a file of the UNet."""
    folder = parent / (title or name)
    unet = UNet2DConditionModel(**{**UNET, **UNETS[name]}).half()
    unet.load_state_dict(unet_tensors(name))
    unet.save_pretrained(folder / "unet", max_shard_size=shards, variant=variant)
    widths = [TINY_FAMILIES[name].vae_width * step for step in (1, 2, 4, 4)]
    vae = AutoencoderKL(
        block_out_channels=tuple(widths),
        layers_per_block=2,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        scaling_factor=0.13025 if name.startswith("sdxl") else 0.18215,
    ).half()
    vae.load_state_dict(vae_tensors(name))
    vae.save_pretrained(folder / "vae", variant=variant)
    sizes = TINY_FAMILIES[name]
    for part, tensors in text_tensors(name).items():
        (folder / part).mkdir()
        save_file(tensors, folder / part / f"model{f'.{variant}' if variant else ''}.safetensors")
        is_clip = part == "text_encoder" and sizes.clip is not None
        sizes_of = sizes.clip or sizes.open_clip if is_clip else sizes.open_clip
        assert sizes_of is not None
        write_json(folder / part / "config.json", text_config(sizes_of[1], is_clip, name.startswith("sd2")))
    write_json(folder / "scheduler" / "scheduler_config.json", scheduler_config(name))
    write_json(folder / "model_index.json", {"_class_name": "DiffusionPipeline", "unet": ["diffusers", "x"]})
    return folder


def text_config(text: TextSizes, is_clip: bool, is_cut: bool) -> dict[str, Any]:
    """A text encoder's `config.json`."""
    return {
        "hidden_act": "quick_gelu" if is_clip else "gelu",
        "hidden_size": text.width,
        "intermediate_size": text.mlp,
        "num_attention_heads": text.width // 64,
        "num_hidden_layers": text.layers - is_cut,
        "vocab_size": text.vocabulary,
    }


def scheduler_config(name: str) -> dict[str, Any]:
    """`scheduler/scheduler_config.json`."""
    is_v = name == "sdxl-v"
    return {
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "num_train_timesteps": 1000,
        "prediction_type": "v_prediction" if is_v else "epsilon",
        "rescale_betas_zero_snr": is_v,
    }


def write_json(path: Path, content: object) -> None:
    """Also makes the folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


class _Width:
    """What diffusers' conversion asks a text model for."""

    def __init__(self, width: int) -> None:
        self.config = torch.nn.Module()
        self.config.hidden_size = width  # type: ignore[assignment]
