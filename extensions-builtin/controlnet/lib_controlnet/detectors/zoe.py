"""Depth in meters by ZoeDepth (Bhat et al. 2023, arXiv:2302.12288), in the class of transformers, from files of its
authors and of transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lib_controlnet.detectors.weights import as_batch, as_bytes, filled, renamed
from lib_controlnet.pixels import Pixels

HEIGHT, WIDTH, MULTIPLE = 384, 512, 32
BORDER = 3.0
"""An image is mirrored at its edges by so many times the root of half a side: what is there would be wrong."""
NEAR, FAR = 0.02, 0.85
"""The shares of pixels nearer than what is white, and than what is black."""
BACKBONE: dict[str, Any] = {
    "image_size": 384,
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "use_relative_position_bias": True,
    "reshape_hidden_states": False,
    "out_features": ["stage6", "stage12", "stage18", "stage24"],
}
SIZES: dict[str, Any] = {"neck_hidden_sizes": [256, 512, 1024, 1024]}
LAYER = r"^(backbone\.beit\.layers\.\d+)\."
RENAMED = (
    (re.compile(r"^core\.core\.pretrained\.model\.blocks\."), "backbone.beit.layers."),
    (re.compile(r"^core\.core\.pretrained\.model\.(patch_embed\.proj|cls_token)"), r"backbone.embeddings.\1"),
    (re.compile(r"^(backbone\.embeddings)\.patch_embed\.proj\."), r"\1.patch_embeddings.projection."),
    (re.compile(r"^backbone\.embeddings\."), "backbone.beit.embeddings."),
    (re.compile(r"^backbone\.encoder\.layer\."), "backbone.beit.layers."),
    (re.compile(LAYER + r"norm1\."), r"\1.layernorm_before."),
    (re.compile(LAYER + r"norm2\."), r"\1.layernorm_after."),
    (re.compile(LAYER + r"gamma_([12])$"), r"\1.lambda_\2"),
    (re.compile(LAYER + r"intermediate\.dense\."), r"\1.mlp.fc1."),
    (re.compile(LAYER + r"output\.dense\."), r"\1.mlp.fc2."),
    (re.compile(LAYER + r"attn\.([qv])_bias$"), r"\1.attention.\2_proj.bias"),
    (re.compile(LAYER + r"(?:attn|attention\.output)\.(?:proj|dense)\."), r"\1.attention.o_proj."),
    (re.compile(LAYER + r"attention\.attention\.(query|key|value)\."), lambda m: f"{m[1]}.attention.{m[2][0]}_proj."),
    (re.compile(LAYER + r"(?:attn|attention\.attention\.relative_position_bias)\.(relative_position_bias)_table$"),
     r"\1.\2.\2_table"),
    (re.compile(r"^core\.core\.pretrained\.act_postprocess(\d)\.0\.project\."),
     lambda m: f"neck.reassemble_stage.readout_projects.{int(m[1]) - 1}."),
    (re.compile(r"^core\.core\.pretrained\.act_postprocess(\d)\.(3|4)\."),
     lambda m: f"neck.reassemble_stage.layers.{int(m[1]) - 1}.{'projection' if m[2] == '3' else 'resize'}."),
    (re.compile(r"^core\.core\.scratch\.layer(\d)_rn\."), lambda m: f"neck.convs.{int(m[1]) - 1}."),
    (re.compile(r"^core\.core\.scratch\.refinenet(\d)\."), lambda m: f"neck.fusion_stage.layers.{4 - int(m[1])}."),
    (re.compile(r"\.resConfUnit([12])\.conv([12])\."), r".residual_layer\1.convolution\2."),
    (re.compile(r"\.out_conv\."), ".projection."),
    (re.compile(r"^core\.core\.scratch\.output_conv\.([024])\."), lambda m: f"relative_head.conv{int(m[1]) // 2 + 1}."),
    (re.compile(r"^(conv2|seed_bin_regressor|seed_projector|projectors|attractors|conditional_log_binomial)\."),
     r"metric_head.\1."),
    (re.compile(r"\._net\.([02])\."), lambda m: f".conv{int(m[1]) // 2 + 1}."),
)  # fmt: skip
FUSED = ((re.compile(LAYER + r"attn\.qkv\.(weight)$"), r"\1.attention.{}_proj.\2"),)


def our_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the names of the class of transformers."""
    return renamed(tensors, RENAMED, FUSED)


def net_of(path: Path) -> Any:
    """The network of a file. Raises `CheckpointError`."""
    from transformers import BeitConfig, ZoeDepthConfig, ZoeDepthForDepthEstimation

    config = ZoeDepthConfig(backbone_config=BeitConfig(**BACKBONE), **SIZES)
    return filled(ZoeDepthForDepthEstimation(config), path, our_names)


def depth_of(net: Any, x: Tensor) -> Tensor:
    """Meters [H,W] of an image [1,3,H,W] in 0..1: the mean of what is seen in it and in its mirror image."""
    height, width = x.shape[2:]
    top, left = (int((side / 2) ** 0.5 * BORDER) for side in (height, width))
    padded = F.pad(x, (left, left, top, top), mode="reflect")
    scales = (HEIGHT / padded.shape[2], WIDTH / padded.shape[3])
    scale = scales[1] if abs(1 - scales[1]) < abs(1 - scales[0]) else scales[0]
    size = [max(1, round(scale * side / MULTIPLE)) * MULTIPLE for side in padded.shape[2:]]
    small = F.interpolate(padded, size=size, mode="bilinear", align_corners=True) * 2.0 - 1.0
    depth = (net(small).predicted_depth + net(small.flip(3)).predicted_depth.flip(2)) / 2.0
    whole = F.interpolate(depth[None], size=padded.shape[2:], mode="bicubic", align_corners=False)
    return whole[0, 0, top : top + height, left : left + width]


@torch.inference_mode()
def depth_map(image: Pixels, path: Path) -> Pixels:
    """Depth [H,W] of [H,W,3]; near is white."""
    depth = depth_of(net_of(path), as_batch(image) / 255.0)
    near, far = (torch.quantile(depth.flatten(), share) for share in (NEAR, FAR))
    return as_bytes(1.0 - (depth - near) / (far - near).clamp_min(1e-12))
