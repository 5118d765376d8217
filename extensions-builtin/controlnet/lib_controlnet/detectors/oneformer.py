"""Segmentation by OneFormer (Jain et al. 2023, arXiv:2211.06220) with Swin-L, in the class of transformers, from files
of its authors: which of the classes of ADE20K or COCO each pixel is of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.detectors.palettes import ADE20K, COCO, painted
from lib_controlnet.detectors.weights import as_batch, filled, renamed
from lib_controlnet.pixels import Pixels

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
MULTIPLE = 32
TASK = (49406, 518, 10549, 533, 29119, 1550, 49407)
"""The pieces of "the task is semantic" in CLIP's vocabulary, which the network receives."""
TASK_LENGTH = 77
BACKBONE: dict[str, Any] = {
    "embed_dim": 192,
    "depths": [2, 2, 18, 2],
    "num_heads": [6, 12, 24, 48],
    "window_size": 12,
    "image_size": 384,
    "drop_path_rate": 0.0,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
SIZES: dict[str, Any] = {}
"""Of the rest, where they are not the class's own."""


@dataclass(frozen=True)
class Classes:
    """Classes that a file knows: colors by class, how many things it looks for, and the sides that it has learnt
    with."""

    colors: npt.NDArray[np.uint8]
    queries: int
    short_side: int
    long_side: int


OF_ADE20K = Classes(ADE20K, 250, 640, 2560)
OF_COCO = Classes(COCO, 150, 800, 1333)

SWIN = "pixel_level_module.encoder.swin."
PIXELS = "pixel_level_module.decoder."
QUERIES = "transformer_module.decoder."
LAYERS = f"{QUERIES}layers."
STAGE_NORMS = "pixel_level_module.encoder.hidden_states_norms."
RENAMED = (
    (re.compile(r"^backbone\.patch_embed\.proj\."), f"{SWIN}embeddings.patch_embeddings.projection."),
    (re.compile(r"^backbone\.patch_embed\.norm\."), f"{SWIN}embeddings.norm."),
    (re.compile(r"^backbone\.norm(\d)\."), lambda match: f"{STAGE_NORMS}stage{int(match[1]) + 1}."),
    (re.compile(r"^backbone\.layers\."), f"{SWIN}encoder.layers."),
    (re.compile(r"(\.blocks\.\d+)\.norm1\."), r"\1.layernorm_before."),
    (re.compile(r"(\.blocks\.\d+)\.norm2\."), r"\1.layernorm_after."),
    (re.compile(r"(\.blocks\.\d+)\.attn\.proj\."), r"\1.attention.o_proj."),
    (re.compile(r"\.attn\.(relative_position_bias)_table$"), r".attention.\1.\1_table"),
    (re.compile(r"^sem_seg_head\.pixel_decoder\.transformer\."), PIXELS),
    (re.compile(r"^sem_seg_head\.pixel_decoder\."), PIXELS),
    (re.compile(r"\.decoder\.input_proj\."), ".decoder.input_projections."),
    (re.compile(r"\.decoder\.mask_features\."), ".decoder.mask_projection."),
    (re.compile(r"\.(adapter_1|layer_1)\.norm\."), r".\1.1."),
    (re.compile(r"\.(adapter_1|layer_1)\.weight$"), r".\1.0.weight"),
    (re.compile(rf"^({re.escape(PIXELS)}encoder\.layers\.\d+)\.linear([12])\."), r"\1.fc\2."),
    (re.compile(rf"^({re.escape(PIXELS)}encoder\.layers\.\d+)\.norm1\."), r"\1.self_attn_layer_norm."),
    (re.compile(rf"^({re.escape(PIXELS)}encoder\.layers\.\d+)\.norm2\."), r"\1.final_layer_norm."),
    (re.compile(r"^sem_seg_head\.predictor\.query_embed\."), "transformer_module.queries_embedder."),
    (re.compile(r"^sem_seg_head\.predictor\.level_embed\."), "transformer_module.level_embed."),
    (re.compile(r"^sem_seg_head\.predictor\.transformer_(\w+)_attention_layers\.(\d+)\."), rf"{LAYERS}\2.\1_attn."),
    (re.compile(r"^sem_seg_head\.predictor\.transformer_ffn_layers\.(\d+)\."), rf"{LAYERS}\1.ffn."),
    (re.compile(r"^sem_seg_head\.predictor\.class_input_proj\."), f"{QUERIES}query_input_projection."),
    (re.compile(r"^sem_seg_head\.predictor\.class_transformer\."), f"{QUERIES}query_transformer."),
    (re.compile(r"^sem_seg_head\.predictor\.mask_embed\.layers\.(\d)\."), rf"{QUERIES}mask_embed.layers.\1.0."),
    (re.compile(r"^sem_seg_head\.predictor\."), QUERIES),
    (re.compile(r"^task_mlp\.layers\.(\d)\."), r"task_encoder.task_mlp.layers.\1.0."),
)  # fmt: skip
FUSED = (
    (re.compile(r"^(.*\.blocks\.\d+)\.attn\.qkv\.(weight|bias)$"), r"\1.attention.{}_proj.\2"),
    (re.compile(rf"^({re.escape(LAYERS)}\d+\.self_attn\.self_attn)\.in_proj_(weight|bias)$"), r"\1.{}_proj.\2"),
)  # fmt: skip
"""Tensors of three parts: query, key, value."""


def our_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the names of the class of transformers."""
    return renamed(tensors, RENAMED, FUSED)


def net_of(path: Path, classes: Classes) -> Any:
    """The network of a file. Raises `CheckpointError`."""
    from transformers import OneFormerConfig, OneFormerModel, SwinConfig

    config = OneFormerConfig(
        backbone_config=SwinConfig(**BACKBONE),
        num_labels=len(classes.colors),
        num_queries=classes.queries,
        task_seq_len=TASK_LENGTH,
        is_training=False,
        **SIZES,
    )
    net = OneFormerModel(config)
    net.pixel_level_module.encoder.swin.layernorm = nn.Identity()  # behind the stages, which have norms of their own
    return filled(net, path, our_names)


def class_shares(net: Any, x: Tensor) -> Tensor:
    """How much each class is there, [1,classes,H,W], of a normalized image [1,3,H,W] with sides of multiples of 32."""
    task = torch.zeros(1, TASK_LENGTH)
    task[0, : len(TASK)] = torch.tensor(TASK, dtype=torch.float32)
    found = net(x, task)
    shares = found.transformer_decoder_class_predictions.softmax(-1)[..., :-1]
    masks = F.interpolate(
        found.transformer_decoder_mask_predictions, size=x.shape[2:], mode="bilinear", align_corners=False
    )
    return torch.einsum("bqc,bqhw->bchw", shares, masks.sigmoid())


@torch.inference_mode()
def segments(image: Pixels, path: Path, classes: Classes) -> Pixels:
    """[H,W,3] painted in the color of each pixel's class."""
    net = net_of(path, classes)
    height, width = image.shape[:2]
    scale = min(classes.short_side / min(height, width), classes.long_side / max(height, width))
    size = [int(side * scale + 0.5) for side in (height, width)]
    x = F.interpolate(as_batch(image), size=size, mode="bilinear", align_corners=False, antialias=True)
    x = (x - x.new_tensor(MEAN).reshape(1, 3, 1, 1)) / x.new_tensor(STD).reshape(1, 3, 1, 1)
    x = F.pad(x, (0, -size[1] % MULTIPLE, 0, -size[0] % MULTIPLE))
    shares = class_shares(net, x)[:, :, : size[0], : size[1]]
    shares = F.interpolate(shares, size=(height, width), mode="bilinear", align_corners=False)
    return painted(shares[0].argmax(0).numpy(), classes.colors)
