"""How a control map comes to the size of the image: the three resize modes, with care for lines and flat colors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lib_controlnet.edges import line_maxima, otsu, thinned
from lib_controlnet.pixels import resize_area, resize_cubic, resize_nearest
from lib_controlnet.resize_mode import ResizeMode

FEW_COLORS = 200


def fitted(control_map: npt.NDArray[Any], mode: ResizeMode, width: int, height: int) -> npt.NDArray[Any]:
    """A map [H,W,3], or [H,W,4] with a mask as its fourth channel, as [height,width,C], in its dtype."""
    if mode is ResizeMode.JUST_RESIZE:
        return resized_map(control_map, width, height)
    old_height, old_width = control_map.shape[:2]
    scales = (height / old_height, width / old_width)
    scale = min(scales) if mode is ResizeMode.FILL else max(scales)
    size = (int(np.round(old_width * scale)), int(np.round(old_height * scale)))
    scaled = resized_map(control_map, *size)
    if mode is ResizeMode.CROP:
        top, left = max(0, (scaled.shape[0] - height) // 2), max(0, (scaled.shape[1] - width) // 2)
        return scaled[top : top + height, left : left + width]
    edges = (control_map[0], control_map[-1], control_map[:, 0], control_map[:, -1])
    color = np.median(np.concatenate(edges), axis=0).astype(control_map.dtype)
    if len(color) == 4:
        color[3] = 255
    result = np.tile(color, (height, width, 1))
    top, left = max(0, (height - scaled.shape[0]) // 2), max(0, (width - scaled.shape[1]) // 2)
    result[top : top + scaled.shape[0], left : left + scaled.shape[1]] = scaled
    return result


def pixel_perfect(image: npt.NDArray[Any], mode: ResizeMode, width: int, height: int) -> int:
    """The short side at which an image [H,W,C] is processed, so that its map need not be scaled afterwards."""
    scales = (height / image.shape[0], width / image.shape[1])
    scale = min(scales) if mode is ResizeMode.FILL else max(scales)
    return int(np.round(scale * min(image.shape[:2])))


def resized_map(control_map: npt.NDArray[Any], width: int, height: int) -> npt.NDArray[Any]:
    """A map in another size. Of two colors it stays so, and lines of one pixel stay thin; of few colors it gets no
    others; else by area where it shrinks and cubic where it grows."""
    mask = control_map[:, :, 3] if control_map.shape[2] == 4 else None
    result = control_map[:, :, :3]
    if result.shape[:2] != (height, width):
        mask = mask if mask is None else _scaled(result, mask, width, height)
        result = _resized_colors(result, width, height)
    if mask is None:
        return result
    painted = np.where(mask > 127, 255, 0)[:, :, None]
    return np.concatenate([result, painted], axis=2).astype(control_map.dtype)


def _resized_colors(image: npt.NDArray[Any], width: int, height: int) -> npt.NDArray[Any]:
    scaled = _scaled(image, image, width, height)
    if _colors(image) != 2 or image.min() >= 16 or image.max() <= 240:
        return scaled
    gray = scaled.astype(np.float32).mean(axis=2).clip(0, 255).astype(np.uint8)
    if _has_thin_lines(image):
        grows = width * height > image.shape[0] * image.shape[1]
        gray = thinned(otsu(line_maxima(gray)), prune=grows)
    else:
        gray = otsu(gray)
    return np.repeat(gray[:, :, None], 3, axis=2)


def _scaled(image: npt.NDArray[Any], what: npt.NDArray[Any], width: int, height: int) -> npt.NDArray[Any]:
    """`what` [H,W,...] by the method that suits the colors of `image`."""
    if 2 < _colors(image) < FEW_COLORS:
        return resize_nearest(what, width, height)
    shrinks = width * height < image.shape[0] * image.shape[1]
    return resize_area(what, width, height) if shrinks else resize_cubic(what, width, height)


def _colors(image: npt.NDArray[Any]) -> int:
    packed = image.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    return len(np.unique(packed))


def _has_thin_lines(image: npt.NDArray[Any]) -> bool:
    """Whether most of the white vanishes when it loses a pixel on each side."""
    from scipy import ndimage

    size = (3, 3, 1)
    eroded = ndimage.grey_erosion(image, size=size, mode="constant", cval=255)
    opened = ndimage.grey_dilation(eroded, size=size, mode="constant", cval=0)
    return bool(2 * np.count_nonzero(opened < image) > np.count_nonzero(image > 127))
