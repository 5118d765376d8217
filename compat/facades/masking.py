"""`modules.masking`: the area of a mask, and what is painted underneath."""

from __future__ import annotations

from typing import Any

from PIL import Image

from compat.facades.refusal import refusing
from modules.images.masks import Box, fill_masked, grown_to_aspect, masked_area

__all__ = ["expand_crop_region", "expand_too_small_crop_region", "fill", "get_crop_region", "get_crop_region_v2"]


def get_crop_region_v2(mask: Any, pad: int = 0) -> tuple[int, int, int, int] | None:
    """The smallest box (left, top, right, bottom) around everything painted, grown by `pad` pixels; None for an empty
    mask."""
    found = masked_area(_image(mask), int(pad))
    return None if found is None else tuple(found)  # type: ignore[return-value]


def get_crop_region(mask: Any, pad: int = 0) -> tuple[int, int, int, int]:
    """Return the same; for an empty mask the whole image turned inside out, as in the reference UI."""
    image = _image(mask)
    found = get_crop_region_v2(image, pad)
    return found if found is not None else (image.width - pad, image.height - pad, pad, pad)


def expand_crop_region(
    crop_region: Any, processing_width: int, processing_height: int, image_width: int, image_height: int
) -> tuple[int, int, int, int]:
    """The box made wider or higher until it has the aspect ratio of the processing size, as far as the image allows."""
    grown = grown_to_aspect(Box(*crop_region), (processing_width, processing_height), (image_width, image_height))
    return grown.left, grown.top, grown.right, grown.bottom


def expand_too_small_crop_region(
    crop_region: Any, processing_width: int, processing_height: int, image_width: int, image_height: int
) -> tuple[int, int, int, int]:
    """The box made as large as the processing size where it is smaller, as far as the image allows."""
    left, top, right, bottom = crop_region
    left, right = _widened(left, right, processing_width, image_width)
    top, bottom = _widened(top, bottom, processing_height, image_height)
    return left, top, right, bottom


def _widened(low: int, high: int, wanted: int, limit: int) -> tuple[int, int]:
    missing = wanted - (high - low)
    if missing <= 0:
        return low, high
    low, high = low - missing // 2, high + missing - missing // 2
    if low < 0:
        low, high = 0, high - low
    if high > limit:
        low, high = max(low - (high - limit), 0), limit
    return low, high


def fill(image: Image.Image, mask: Image.Image) -> Image.Image:
    """The image with the masked part painted over by the colors around it."""
    return fill_masked(image.convert("RGB"), mask.convert("L"))


def _image(mask: Any) -> Image.Image:
    return mask if isinstance(mask, Image.Image) else Image.fromarray(mask)


__getattr__ = refusing("masking", {})
