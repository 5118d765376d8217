"""A large image through a model in overlapping squares, which fade into each other.

The squares stand and fade as in the reference UI, so that the same file gives the same image.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from modules.upscalers.loading import PixelModel
from modules.upscalers.upscaler_types import Tiling

Pixels = NDArray[np.uint8]
OnTile = Callable[[int, int], None]


def run_in_tiles(
    model: PixelModel, image: Image.Image, tiling: Tiling, device: torch.device, on_tile: OnTile
) -> Image.Image:
    """The image `network.scale` times as large. `on_tile(index, count)` comes before each square and may raise."""
    pixels = np.asarray(image.convert("RGB"))
    height, width = pixels.shape[:2]
    tops, tile_height = _starts(height, tiling)
    lefts, tile_width = _starts(width, tiling)
    scale = model.scale
    overlap = _overlap(tiling) * scale
    result: Pixels = np.zeros((height * scale, width * scale, 3), np.uint8)
    count = len(tops) * len(lefts)
    for row, top in enumerate(tops):
        strip: Pixels = np.zeros((tile_height * scale, width * scale, 3), np.uint8)
        for column, left in enumerate(lefts):
            on_tile(row * len(lefts) + column, count)
            square = pixels[top : top + tile_height, left : left + tile_width]
            _lay(strip, _run(model, square, device), left * scale, overlap if column else 0, axis=1)
        _lay(result, strip, top * scale, overlap if row else 0, axis=0)
    return Image.fromarray(result)


def _overlap(tiling: Tiling) -> int:
    """At most half of a square: beyond, squares would fade before the last one had come in."""
    return min(tiling.overlap, tiling.size // 2)


def _starts(length: int, tiling: Tiling) -> tuple[list[int], int]:
    """Where the squares begin along a side of `length` pixels, evenly spread, and how long they are."""
    size = tiling.size
    if size <= 0 or size >= length:
        return [0], length
    overlap = _overlap(tiling)
    count = math.ceil((length - overlap) / (size - overlap))
    step = (length - size) / (count - 1)
    return [min(int(index * step), length - size) for index in range(count)], size


def _run(model: PixelModel, square: Pixels, device: torch.device) -> Pixels:
    """[h,w,3] RGB to [scale*h,scale*w,3] RGB.

    The model sees blue first, and values are rounded down: so the reference UI does it.
    """
    planes = torch.from_numpy(np.ascontiguousarray(square[:, :, ::-1])).permute(2, 0, 1)
    with torch.inference_mode():
        larger = model(planes[None].to(device, torch.float32) / 255.0)[0]
    scaled = (larger.float() * 255.0).clamp(0.0, 255.0).to("cpu", torch.uint8).permute(1, 2, 0).numpy()
    return np.ascontiguousarray(scaled[:, :, ::-1])


def _lay(canvas: Pixels, piece: Pixels, start: int, overlap: int, axis: int) -> None:
    """Put `piece` on `canvas` (in place) from `start` on along `axis`; it fades in over its first `overlap` pixels."""
    across = np.moveaxis(canvas, axis, 0)
    laid = np.moveaxis(piece, axis, 0)
    across[start + overlap : start + len(laid)] = laid[overlap:]
    if overlap:
        ramp = (np.arange(overlap, dtype=np.float32) / overlap)[:, None, None]
        below = across[start : start + overlap].astype(np.float32)
        faded = below + (laid[:overlap].astype(np.float32) - below) * ramp
        across[start : start + overlap] = np.rint(faded).astype(np.uint8)
