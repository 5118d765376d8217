"""Writes the trained components back into one file in the original SD1 layout, fp16, with its YAML next to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from modules.models.names.clip_text import clip_text_keymap
from modules.models.names.keymap import KeyMap
from modules.models.names.ldm_unet import UNetLayout, unet_keymap
from modules.models.names.ldm_vae import vae_keymap
from recipes.scenes.model import SceneModel
from recipes.scenes.pool import SHARD_IMAGES, images_of_shard, read_shard, shard_path

ADAPTERS = ("model.diffusion_model.", "first_stage_model.", "cond_stage_model.")
Factors = tuple[list[list[float]], list[float]]


def original_tensors(keymap: KeyMap, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`state` of one of our modules under its original names and in its original shapes, fp16."""
    tensors = {}
    for name, tensor in state.items():
        original = keymap.to_original(name)
        if original is None:
            raise ValueError(f"no original name for {name}")
        tensors[original] = keymap.tensor_to_original(name, tensor).to(torch.float16).contiguous()
    return tensors


def original_state(model: SceneModel) -> dict[str, Tensor]:
    """All tensors of the checkpoint: three components, and the schedule that old loaders look for."""
    unet, vae = model.unet.config, model.vae.config
    attention = frozenset(i for i, kind in enumerate(unet.down_block_types) if "CrossAttn" in kind)
    layout = UNetLayout(len(unet.block_out_channels), unet.layers_per_block, attention)
    return {
        **original_tensors(unet_keymap(layout), model.unet.state_dict()),
        **original_tensors(vae_keymap(len(vae.block_out_channels), vae.layers_per_block), model.vae.state_dict()),
        **original_tensors(clip_text_keymap(), model.text.state_dict()),
        "alphas_cumprod": model.alphas_cumprod.clone(),
    }


def export(model: SceneModel, start: Path, target: Path, factors: Factors) -> None:
    """Write `target` (.safetensors) and its YAML, atomically.

    The components' names and shapes must be those of `start`, whose YAML is taken over with the preview's factors
    and the latents' scale added; raises ValueError where they differ.
    """
    state = original_state(model)
    wanted = {
        name: tensor.shape
        for name, tensor in load_file(start).items()
        if name.startswith(ADAPTERS) and not name.endswith("position_ids")
    }
    shapes = {name: tensor.shape for name, tensor in state.items() if name.startswith(ADAPTERS)}
    different = sorted(name for name in wanted.keys() | shapes.keys() if wanted.get(name) != shapes.get(name))
    if different:
        raise ValueError(f"{len(different)} tensors differ from {start.name} in name or shape: {different[:5]}")
    config: Any = OmegaConf.load(start.with_suffix(".yaml"))
    config.model.params.preview_rgb_factors, config.model.params.preview_rgb_bias = factors
    config.model.params.scale_factor = model.scale_factor
    unfinished = target.with_suffix(".part")
    save_file(state, unfinished, metadata={"format": "pt"})
    unfinished.replace(target)
    target.chmod(0o644)
    OmegaConf.save(config, target.with_suffix(".yaml"))


def fit_preview_factors(latents: Tensor, images: Tensor) -> Factors:
    """Least squares from latents [n, 4, h, w], scaled, to images [n, 3, 8h, 8w] in -1..1, reduced to h x w.

    Returns four rows of red, green, blue and the bias, rounded to four digits.
    """
    colors = F.interpolate(images, size=latents.shape[-2:], mode="area").permute(0, 2, 3, 1).reshape(-1, 3)
    values = latents.permute(0, 2, 3, 1).reshape(-1, latents.shape[1])
    values = torch.cat([values, torch.ones(len(values), 1)], dim=1)
    solution = torch.linalg.lstsq(values, colors).solution
    rows = [[round(float(value), 4) for value in row] for row in solution]
    return rows[:-1], rows[-1]


def preview_factors_of_pool(folder: Path, scale_factor: float) -> Factors:
    """The factors fitted on the first shard of the pool."""
    latents, _ = read_shard(shard_path(folder, 0))
    return fit_preview_factors(latents.float() * scale_factor, images_of_shard(0, SHARD_IMAGES))
