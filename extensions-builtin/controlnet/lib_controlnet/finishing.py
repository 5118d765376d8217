"""Work of units on finished images: kept pixels are pasted back, lightness comes from the map."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lib_controlnet.pixels import Pixels, with_lightness

HSV_BITS = 12


def finish(each: Any, images: Any, border_px: int) -> None:
    """Change images [B,3,H,W] in 0..1 in place, by the map of a unit in their size. What an inpaint map paints grows
    and fades by `border_px`."""
    import torch

    height, width = images.shape[2:]
    pixels = each.map.fitted(width, height)
    for index in range(len(images)):
        image = images[index].float().cpu().permute(1, 2, 0).numpy()
        result = _finished(each.unit.module.name, image, pixels, 0 if each.map.masks_itself else border_px)
        if result is not None:
            images[index] = torch.from_numpy(result).permute(2, 0, 1).to(images)


def _finished(name: str, image: npt.NDArray[Any], pixels: npt.NDArray[Any], border_px: int) -> npt.NDArray[Any] | None:
    if name == "recolor_luminance":
        return with_lightness(_in_8_bits(image), pixels[:, :, 0]).astype(np.float32) / 255.0
    if name == "recolor_intensity":
        return with_value(_in_8_bits(image), pixels[:, :, 0]).astype(np.float32) / 255.0
    if not name.startswith("inpaint_only") or pixels.shape[2] < 4 or not border_px:
        return None
    from scipy import ndimage

    painted = pixels[:, :, 3].astype(np.float32) / 255.0
    grown = ndimage.maximum_filter(painted, size=border_px, mode="nearest")
    soft = ndimage.uniform_filter(grown, border_px, mode="mirror")[:, :, None]
    kept = pixels[:, :, :3].astype(np.float32) / 255.0
    result: npt.NDArray[Any] = (soft * image.clip(0, 1) + (1.0 - soft) * kept).clip(0, 1).astype(np.float32)
    return result


def _in_8_bits(image: npt.NDArray[Any]) -> Pixels:
    found: Pixels = (image * 255.0).clip(0, 255).astype(np.uint8)
    return found


def with_value(image: Pixels, value: Pixels) -> Pixels:
    """[H,W,3] with V of HSV replaced by `value` [H,W]; hue and saturation as 8-bit images hold them."""
    red, green, blue = (image[:, :, place].astype(np.int64) for place in range(3))
    highest, lowest = image.max(axis=2).astype(np.int64), image.min(axis=2).astype(np.int64)
    spread = highest - lowest
    turned = np.where(
        highest == red,
        green - blue,
        np.where(highest == green, 2 * spread + blue - red, 4 * spread + red - green),
    )
    per_spread = np.round((180 << HSV_BITS) / (6.0 * np.maximum(spread, 1))).astype(np.int64)
    per_value = np.round((255 << HSV_BITS) / np.maximum(highest, 1)).astype(np.int64)
    half = 1 << (HSV_BITS - 1)
    hue = np.where(spread > 0, (turned * per_spread + half) >> HSV_BITS, 0)
    hue = np.where(hue < 0, hue + 180, hue) / 30.0
    saturation = np.where(highest > 0, (spread * per_value + half) >> HSV_BITS, 0) / 255.0
    sector = np.floor(hue).astype(int)
    part = hue - sector
    top = value.astype(np.float64)
    low, falling, rising = top * (1 - saturation), top * (1 - saturation * part), top * (1 - saturation * (1 - part))
    choices = np.stack(
        [
            np.stack(each, axis=2)
            for each in (
                (top, rising, low),
                (falling, top, low),
                (low, top, rising),
                (low, falling, top),
                (rising, low, top),
                (top, low, falling),
            )
        ]
    )
    found = np.take_along_axis(choices, (sector % 6)[None, :, :, None], axis=0)[0]
    result: Pixels = np.clip(np.round(found), 0, 255).astype(np.uint8)
    return result
