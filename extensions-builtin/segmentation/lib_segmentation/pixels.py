"""Images as networks take them, and what they answer as masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
"""Means and standard deviations of the images that networks were trained with."""
WORK_PX = 2048
"""Longest side of a mask that is computed; those of larger images are enlarged from it."""
MAX_FOUND, MAX_OUTLINES_BYTES = 64, 1 << 30
"""Things that are outlined in an image, and what their masks take in its size."""
Values = npt.NDArray[np.float32]


def normalized(image: Image.Image, mean_std: tuple[tuple[float, ...], tuple[float, ...]]) -> Tensor:
    """Return an RGB image as [1,3,H,W]."""
    mean, std = (np.array(values, np.float32) for values in mean_std)
    values = (np.asarray(image, np.float32) / 255.0 - mean) / std
    return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))[None]


def stretched(image: Image.Image, side_px: int) -> Image.Image:
    """Stretch the image to a square."""
    return image.resize((side_px, side_px), Image.Resampling.BILINEAR)


def padded(image: Image.Image, side_px: int) -> Image.Image:
    """Put the image into the top left corner of a black square."""
    scale = side_px / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    square = Image.new("RGB", (side_px, side_px))
    square.paste(image.resize((width, height), Image.Resampling.BILINEAR))
    return square


def work_size(size_px: tuple[int, int]) -> tuple[int, int]:
    """Return the width and height that a mask of an image is computed in."""
    scale = min(1.0, WORK_PX / max(size_px))
    return max(1, round(size_px[0] * scale)), max(1, round(size_px[1] * scale))


def max_found(size_px: tuple[int, int]) -> int:
    """Return how many things are outlined in an image of a width and height."""
    return max(1, min(MAX_FOUND, MAX_OUTLINES_BYTES // (size_px[0] * size_px[1])))


def values_at(values: Tensor, size_px: tuple[int, int]) -> Values:
    """Enlarge [h,w] to a width and height, bilinear."""
    wide = torch.nn.functional.interpolate(values.float()[None, None], size_px[::-1], mode="bilinear")
    found: Values = wide[0, 0].cpu().numpy()
    return found


def as_mask(is_there: npt.NDArray[Any], size_px: tuple[int, int]) -> Image.Image:
    """Return booleans [h,w] as a mask ("L", 0 and 255) of a width and height."""
    mask = Image.fromarray(np.where(is_there, 255, 0).astype(np.uint8))
    if mask.size == size_px:
        return mask
    return mask.resize(size_px, Image.Resampling.BILINEAR).point(lambda value: 255 if value > 127 else 0)
