"""Depth by Depth Anything, version 1 and 2 (Yang et al. 2024, arXiv:2401.10891, arXiv:2406.09414), from files of its
authors and of transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lib_controlnet.detectors.weights import as_batch, as_bytes, filled, renamed, tensors_of
from lib_controlnet.pixels import Pixels
from modules.errors import CheckpointError

SIDE, PATCH = 518, 14
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES: dict[int, dict[str, Any]] = {
    384: {"layers": 12, "heads": 6, "neck": [48, 96, 192, 384], "fusion": 64},
    768: {"layers": 12, "heads": 12, "neck": [96, 192, 384, 768], "fusion": 128},
    1024: {"layers": 24, "heads": 16, "neck": [256, 512, 1024, 1024], "fusion": 256},
}
"""By the width of the encoder: ViT-S, ViT-B, ViT-L."""
LAST_OF_FIRST = {12: [9, 10, 11, 12], 24: [21, 22, 23, 24]}
LAST_OF_SECOND = {12: [3, 6, 9, 12], 24: [5, 12, 18, 24]}
"""The layers whose outputs count, by the number of layers: version 1 takes the last ones."""
POSITIONS = "backbone.embeddings.position_embeddings"
FUSED = ((re.compile(r"^(backbone\.encoder\.layer\.\d+)\.attn\.qkv\.(weight|bias)$"), r"\1.attention.{}_proj.\2"),)
RENAMED = (
    (re.compile(r"^depth_head\.scratch\.layer(\d)_rn\."), lambda match: f"neck.convs.{int(match[1]) - 1}."),
    (
        re.compile(r"^depth_head\.scratch\.refinenet(\d)\."),
        lambda m: f"neck.fusion_stage.layers.{4 - int(m[1])}.",
    ),
    (re.compile(r"^pretrained\.blocks\.(\d+)\."), r"backbone.encoder.layer.\1."),
    (re.compile(r"^pretrained\.patch_embed\.proj\."), "backbone.embeddings.patch_embeddings.projection."),
    (re.compile(r"^pretrained\.pos_embed$"), POSITIONS),
    (re.compile(r"^pretrained\.(cls|mask)_token$"), r"backbone.embeddings.\1_token"),
    (re.compile(r"^pretrained\.norm\."), "backbone.layernorm."),
    (re.compile(r"\.ls([12])\.gamma$"), r".layer_scale\1.lambda1"),
    (re.compile(r"\.attn\.proj\."), ".attention.o_proj."),
    (re.compile(r"^depth_head\.projects\.(\d)\."), r"neck.reassemble_stage.layers.\1.projection."),
    (re.compile(r"^depth_head\.resize_layers\.(\d)\."), r"neck.reassemble_stage.layers.\1.resize."),
    (re.compile(r"^depth_head\.scratch\.output_conv1\."), "head.conv1."),
    (re.compile(r"^depth_head\.scratch\.output_conv2\.0\."), "head.conv2."),
    (re.compile(r"^depth_head\.scratch\.output_conv2\.2\."), "head.conv3."),
    (re.compile(r"\.resConfUnit([12])\.conv([12])\."), r".residual_layer\1.convolution\2."),
    (re.compile(r"\.out_conv\."), ".projection."),
    (re.compile(r"\.attention\.attention\.(query|key|value)\."), lambda m: f".attention.{m[1][0]}_proj."),
    (re.compile(r"\.attention\.output\.dense\."), ".attention.o_proj."),
)


def our_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the names of the class of transformers."""
    return renamed(tensors, RENAMED, FUSED)


def net_of(path: Path, is_second: bool) -> Any:
    """The network of a file, whose size its tensors tell. Raises `CheckpointError`."""
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    tensors = our_names(tensors_of(path))
    width = int(tensors[POSITIONS].shape[-1]) if POSITIONS in tensors else 0
    sizes = SIZES.get(width)
    if sizes is None:
        raise CheckpointError(
            f"{path.name} is no file of Depth Anything (ViT-S, ViT-B or ViT-L). Put one in its place, of its authors "
            "or of transformers."
        )
    last = (LAST_OF_SECOND if is_second else LAST_OF_FIRST)[sizes["layers"]]
    encoder = Dinov2Config(
        hidden_size=width,
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        image_size=SIDE,
        patch_size=PATCH,
        out_indices=last,
        reshape_hidden_states=False,
    )
    config = DepthAnythingConfig(
        backbone_config=encoder,
        reassemble_hidden_size=width,
        neck_hidden_sizes=sizes["neck"],
        fusion_hidden_size=sizes["fusion"],
        patch_size=PATCH,
    )
    return filled(DepthAnythingForDepthEstimation(config), path, our_names)


@torch.inference_mode()
def anything(image: Pixels, path: Path, is_second: bool) -> Pixels:
    """Depth [H,W] of [H,W,3]; near is white."""
    net = net_of(path, is_second)
    height, width = image.shape[:2]
    scale = SIDE / min(height, width)
    size = [max(PATCH, round(side * scale / PATCH) * PATCH) for side in (height, width)]
    x = F.interpolate(as_batch(image) / 255.0, size=size, mode="bicubic", align_corners=False)
    x = (x - x.new_tensor(MEAN).reshape(1, 3, 1, 1)) / x.new_tensor(STD).reshape(1, 3, 1, 1)
    depth = net(x).predicted_depth[None]
    depth = F.interpolate(depth, size=(height, width), mode="bilinear", align_corners=False)
    low, high = depth.min(), depth.max()
    if not bool(high > low):
        return np.zeros((height, width), np.uint8)
    return as_bytes((depth - low) / (high - low))
