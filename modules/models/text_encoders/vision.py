"""Vision towers: what language models that see look at images with (Qwen2.5-VL, Bai et al. 2025, arXiv:2502.13923; and
Qwen3-VL, arXiv:2511.21631).

A tower turns an image into tokens that stand among those of a text. Its names in files are transformers', behind
`visual.`; all sizes follow from the tensors, or are the same in all published models.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from modules.errors import CheckpointError
from modules.models.detection.parts import VISION
from modules.models.libraries import library_name
from modules.models.names.component import Component, Header, meta_module, reading_sizes
from modules.models.names.keymap import KeyMap, ModulePair

MERGED = 2
"""Patches a side that become one token."""
MIN_PIXELS, MAX_PIXELS = 56 * 56, 28 * 28 * 1280
QWEN3_MAX_PIXELS = 4096 * 4096
EDITED_PIXELS, EDITED_MULTIPLE = 384 * 384, 32
"""The area that an image to edit is shown with, and what its sides are multiples of."""
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Of CLIP's images, which the towers of Qwen2.5-VL were trained on."""
QWEN2_HEAD, QWEN2_WHOLE, WINDOW_PX = 80, 8, 112
"""Of Qwen2.5-VL: the width of heads, which of the blocks attend to the whole image, each eighth, and the windows of the
others."""
QWEN3_HEADS, QWEN3_DEEP = 16, {27: (8, 16, 24)}
"""Of Qwen3-VL: heads, and by the number of blocks those whose states go into the first layers of the language model."""
QWEN3_USUALLY_DEEP = (5, 11, 17)
AXIAL_THETA = 10_000.0
PATCHES = f"{VISION}patch_embed.proj.weight"
SKIP = (r"^patch_embed\.", r"^pos_embed$")
"""Layers that 8-bit formats leave alone: what pixels go through."""
BLOCK = re.compile(r"\bblocks\.(\d+)\.")
TOWERS = "transformers.models.{0}.modeling_{0}.{1}", "transformers.models.{0}.configuration_{0}.{1}"


@dataclass(frozen=True, eq=False)
class Sight:
    """An image as a language model sees it: `tokens` [rows * columns,width], and what its first layers are given for
    them besides, as wide each."""

    tokens: Tensor
    rows: int
    columns: int
    deep: tuple[Tensor, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for tensor in (self.tokens, *self.deep))


class AxialRotation(nn.Module):
    """The rotary embedding of a tower without buffers, which a module on the meta device could not keep."""

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self._width = head_width // 2

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N,head_width], in float32, for rows and columns [N,2]."""
        steps = torch.arange(0, self._width, 2, dtype=torch.float32, device=x.device) / self._width
        angles = (position_ids.to(x.device)[..., None].float() / AXIAL_THETA**steps).flatten(1).repeat(1, 2)
        return angles.cos(), angles.sin()


def tower_component(header: Header, prefix: str, hint: str) -> Component:
    """Make the tower of the language model at `prefix` on the meta device; `hint` says what to do. Raises
    `CheckpointError` where it is missing or not whole."""
    level = f"{prefix}.{VISION}"
    if not has_tower(header, prefix):
        raise CheckpointError(f"its text encoder has no vision tower (looked for {level}*). {hint}")
    blocks = (BLOCK.search(key) for key in header if key.startswith(level))
    depth = max((int(match[1]) for match in blocks if match), default=-1) + 1
    with reading_sizes("vision tower is not whole or of another type", hint):
        width, channels, frames, patch, _ = header[f"{prefix}.{PATCHES}"].shape
        sizes: dict[str, Any] = {
            "depth": depth,
            "hidden_size": width,
            "in_channels": channels,
            "patch_size": patch,
            "temporal_patch_size": frames,
            "spatial_merge_size": MERGED,
        }
        is_qwen3 = f"{level}pos_embed.weight" in header
        if is_qwen3:
            deep = QWEN3_DEEP.get(depth, QWEN3_USUALLY_DEEP)
            found = {int(key.split("deepstack_merger_list.")[1].split(".")[0]) for key in header if "deepstack_" in key}
            sizes |= {
                "num_heads": min(QWEN3_HEADS, width),
                "intermediate_size": header[f"{level}blocks.0.mlp.linear_fc1.weight"].shape[0],
                "out_hidden_size": header[f"{level}merger.linear_fc2.weight"].shape[0],
                "num_position_embeddings": header[f"{level}pos_embed.weight"].shape[0],
                "deepstack_visual_indexes": deep[: len(found)],
            }
        else:
            sizes |= {
                "num_heads": max(width // QWEN2_HEAD, 1),
                "intermediate_size": header[f"{level}blocks.0.mlp.gate_proj.weight"].shape[0],
                "out_hidden_size": header[f"{level}merger.mlp.2.weight"].shape[0],
                "window_size": WINDOW_PX,
                "fullatt_block_indexes": list(range(QWEN2_WHOLE - 1, depth, QWEN2_WHOLE)),
            }
    family, names = (
        ("qwen3_vl", ("Qwen3VLVisionModel", "Qwen3VLVisionConfig"))
        if is_qwen3
        else ("qwen2_5_vl", ("Qwen2_5_VisionTransformerPretrainedModel", "Qwen2_5_VLVisionConfig"))
    )
    model, config = (path.format(family, name) for path, name in zip(TOWERS, names, strict=True))
    module = meta_module(model, library_name(config)(**sizes))
    module.rotary_pos_emb = AxialRotation(width // sizes["num_heads"])
    parts = sorted({key.removeprefix(level).split(".")[0] for key in header if key.startswith(level)})
    keymap = KeyMap(ModulePair(f"{level}{part}", part) for part in parts)
    return Component("text_encoder_vision", module, keymap, (level,), hint, skip=SKIP)


def has_tower(header: Header, prefix: str) -> bool:
    """Return whether the language model at `prefix` has a vision tower."""
    return f"{prefix}.{PATCHES}" in header


def for_editing(image: Image.Image, area: int = EDITED_PIXELS) -> Image.Image:
    """Return an image in RGB as models that edit are shown it: of nearly `area` pixels whatever its own size."""
    ratio = image.width / image.height
    wide = math.sqrt(area * ratio)
    longest = area // EDITED_MULTIPLE
    sides = (round(side / EDITED_MULTIPLE) * EDITED_MULTIPLE for side in (wide, wide / ratio))
    width, height = (min(max(side, EDITED_MULTIPLE), longest) for side in sides)
    return _in_rgb(image).resize((width, height), Image.Resampling.LANCZOS)


def for_describing(image: Image.Image, area: int = MAX_PIXELS, least: int = 1) -> Image.Image:
    """Return an image in RGB with its own size, or cut down to `area` pixels and sides of at least `least`."""
    share = min(1.0, math.sqrt(area / (image.width * image.height)))
    longest = area // EDITED_MULTIPLE
    width, height = (min(max(round(side * share), least), longest) for side in image.size)
    return _in_rgb(image).resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)


def _in_rgb(image: Image.Image) -> Image.Image:
    return image if image.mode == "RGB" else image.convert("RGB")  # which would copy a large one


def look(tower: Any, image: Image.Image, device: torch.device, dtype: torch.dtype) -> Sight:
    """Run a tower on an image, whose sides become multiples of what a token stands for."""
    config = tower.config
    is_qwen3 = hasattr(config, "deepstack_visual_indexes")
    sides = _size(image, config.patch_size * MERGED, QWEN3_MAX_PIXELS if is_qwen3 else MAX_PIXELS)
    rows, columns = (side // config.patch_size for side in sides)
    mean, deviation = ((0.5,) * 3, (0.5,) * 3) if is_qwen3 else (MEAN, DEVIATION)
    size = (columns * config.patch_size, rows * config.patch_size)
    values = np.asarray(_in_rgb(image).resize(size, Image.Resampling.BICUBIC), dtype=np.float32) / 255.0
    pixels = ((torch.from_numpy(values) - torch.tensor(mean)) / torch.tensor(deviation)).permute(2, 0, 1)
    patches = _patches(pixels, config.patch_size, config.temporal_patch_size)
    grid = torch.tensor([[1, rows, columns]])  # on the CPU: its values are asked for
    found = tower(patches.to(device, dtype), grid_thw=grid)
    deep = tuple(getattr(found, "deepstack_features", ()))
    return Sight(found.pooler_output, rows // MERGED, columns // MERGED, deep)


def _size(image: Image.Image, factor: int, most: int) -> tuple[int, int]:
    """Height and width in pixels that an image is looked at with: multiples of `factor`, of the same shape nearly, and
    of at most `most` pixels."""
    height, width = (max(round(side / factor), 1) * factor for side in (image.height, image.width))
    share = math.sqrt(image.height * image.width)
    if height * width > most:
        share = math.sqrt(most) / share
        height, width = (max(math.floor(side * share / factor), 1) * factor for side in (image.height, image.width))
    elif height * width < MIN_PIXELS:
        share = math.sqrt(MIN_PIXELS) / share
        height, width = (math.ceil(side * share / factor) * factor for side in (image.height, image.width))
    return height, width


def _patches(pixels: Tensor, side: int, frames: int) -> Tensor:
    """Patches [N,C * frames * side * side] of an image [C,H,W], those of one token next to each other."""
    channels, height, width = pixels.shape
    tokens = (height // side // MERGED, width // side // MERGED)
    split = pixels.reshape(channels, tokens[0], MERGED, side, tokens[1], MERGED, side)
    ordered = split.permute(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None].expand(-1, -1, -1, -1, -1, frames, -1, -1)
    return ordered.reshape(-1, channels * frames * side * side)
