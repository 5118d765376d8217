"""Depth by MiDaS (Ranftl et al. 2021, arXiv:2103.13413): the hybrid of a ResNet and a vision transformer, in the class
of transformers, from files of its authors; and normals of that depth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lib_controlnet.detectors.weights import as_batch, as_bytes, filled, renamed
from lib_controlnet.pixels import Pixels

Floats = npt.NDArray[np.float32]

SIDE, PATCH = 384, 16
SIZES: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "neck_hidden_sizes": [256, 512, 768, 768],
    "fusion_hidden_size": 256,
    "backbone_featmap_shape": [1, 1024, SIDE // PATCH, SIDE // PATCH],
    "backbone_config": {
        "model_type": "bit",
        "global_padding": "same",
        "layer_type": "bottleneck",
        "depths": [3, 4, 9],
        "out_features": ["stage1", "stage2", "stage3"],
        "embedding_dynamic_padding": True,
    },
}
"""Of the network of `dpt_hybrid-midas-501f0c75.pt`."""
TAKEN = (8, 11)
"""The layers of the transformer whose outputs count, beside the ResNet's first two stages."""
FLATNESS = 2 * np.pi
"""How long a normal is towards the eye, where depth rises by one a pixel."""
FUSED = ((re.compile(r"^(dpt\.encoder\.layer\.\d+\.attention)\.qkv\.(weight|bias)$"), r"\1.attention.{1}.\2"),)
RENAMED = (
    (re.compile(r"^pretrained\.model\.patch_embed\.backbone\.stem\.conv\."), "bit.embedder.convolution."),
    (re.compile(r"^pretrained\.model\.patch_embed\.backbone\.stem\.norm\."), "bit.embedder.norm."),
    (
        re.compile(r"^pretrained\.model\.patch_embed\.backbone\.stages\.(\d)\.blocks\."),
        r"bit.encoder.stages.\1.layers.",
    ),
    (re.compile(r"^bit\."), "dpt.embeddings.backbone.bit."),
    (re.compile(r"^pretrained\.model\.patch_embed\.proj\."), "dpt.embeddings.projection."),
    (re.compile(r"^pretrained\.model\.cls_token$"), "dpt.embeddings.cls_token"),
    (re.compile(r"^pretrained\.model\.pos_embed$"), "dpt.embeddings.position_embeddings"),
    (re.compile(r"^pretrained\.model\.norm\."), "dpt.layernorm."),
    (re.compile(r"^pretrained\.model\.blocks\.(\d+)\."), r"dpt.encoder.layer.\1."),
    (re.compile(r"^(dpt\.encoder\.layer\.\d+)\.norm1\."), r"\1.layernorm_before."),
    (re.compile(r"^(dpt\.encoder\.layer\.\d+)\.norm2\."), r"\1.layernorm_after."),
    (re.compile(r"^(dpt\.encoder\.layer\.\d+)\.attn\.qkv\."), r"\1.attention.qkv."),
    (re.compile(r"^(dpt\.encoder\.layer\.\d+)\.attn\.proj\."), r"\1.attention.output.dense."),
    (re.compile(r"^(dpt\.encoder\.layer\.\d+)\.mlp\.fc1\."), r"\1.intermediate.dense."),
    (re.compile(r"^(dpt\.encoder\.layer\.\d+)\.mlp\.fc2\."), r"\1.output.dense."),
    (
        re.compile(r"^pretrained\.act_postprocess(\d)\.0\.project\.0\."),
        lambda match: f"neck.reassemble_stage.readout_projects.{int(match[1]) - 1}.0.",
    ),
    (
        re.compile(r"^pretrained\.act_postprocess(\d)\.(3|4)\."),
        lambda match: (
            f"neck.reassemble_stage.layers.{int(match[1]) - 1}.{'projection' if match[2] == '3' else 'resize'}."
        ),
    ),
    (re.compile(r"^scratch\.layer(\d)_rn\."), lambda match: f"neck.convs.{int(match[1]) - 1}."),
    (re.compile(r"^scratch\.refinenet(\d)\."), lambda match: f"neck.fusion_stage.layers.{4 - int(match[1])}."),
    (re.compile(r"\.resConfUnit([12])\.conv([12])\."), r".residual_layer\1.convolution\2."),
    (re.compile(r"\.out_conv\."), ".projection."),
    (re.compile(r"^scratch\.output_conv\."), "head.head."),
)


def our_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the names of the class of transformers."""
    return renamed(tensors, RENAMED, FUSED)


def net_of(path: Path) -> Any:
    """The network of a file. Raises `CheckpointError`."""
    from transformers import DPTConfig, DPTForDepthEstimation

    config = DPTConfig(
        is_hybrid=True,
        readout_type="project",
        reassemble_factors=[1, 1, 1, 0.5],
        image_size=SIDE,
        patch_size=PATCH,
        layer_norm_eps=1e-6,
        **SIZES,
    )
    return filled(DPTForDepthEstimation(config), path, our_names)


def depth_of(net: Any, x: Tensor) -> Tensor:
    """Depth [H,W] of an image [1,3,H,W] in -1..1, whose sides are multiples of 32; near is large."""
    seen = net.dpt.embeddings(x, interpolate_pos_encoding=True)
    levels, hidden = list(seen.intermediate_activations), seen.last_hidden_states
    for number, layer in enumerate(net.dpt.encoder.layer):
        hidden = layer(hidden)
        if number in TAKEN:
            levels.append(hidden)
    rows, columns = x.shape[2] // PATCH, x.shape[3] // PATCH
    depth: Tensor = net.head(net.neck(levels, rows, columns))[0]
    return depth


@torch.inference_mode()
def estimated(image: Pixels, path: Path) -> Tensor:
    """The depth [H,W] of [H,W,3]."""
    return depth_of(net_of(path), as_batch(image) / 127.5 - 1.0)


def _as_shares(depth: Tensor) -> Tensor:
    above = depth - depth.min()
    return above / above.max().clamp_min(1e-12)


def depth_map(image: Pixels, path: Path) -> Pixels:
    """Depth [H,W] of [H,W,3]; near is white."""
    return as_bytes(_as_shares(estimated(image, path)))


def normal_map(image: Pixels, path: Path, background: float) -> Pixels:
    """The normals [H,W,3] of the depth; what is farther than `background` (0 to 1, the nearest is 1) faces the eye."""
    depth = estimated(image, path)
    return normals_of(depth.numpy(), _as_shares(depth).numpy() < background)


def normals_of(depth: Floats, is_flat: npt.NDArray[np.bool_]) -> Pixels:
    """Normals [H,W,3] of depth [H,W], by Sobel's differences over 3 x 3 pixels."""
    padded = np.pad(depth, 1, mode="reflect")
    smooth_down = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    smooth_across = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    x, y = smooth_down[:, 2:] - smooth_down[:, :-2], smooth_across[2:] - smooth_across[:-2]
    x, y = np.where(is_flat, 0.0, x), np.where(is_flat, 0.0, y)
    normal = np.stack([x, y, np.full_like(x, FLATNESS)], axis=2)
    normal /= np.sqrt((normal**2).sum(axis=2, keepdims=True))
    found: Pixels = (normal * 127.5 + 127.5).clip(0, 255).astype(np.uint8)
    return found
