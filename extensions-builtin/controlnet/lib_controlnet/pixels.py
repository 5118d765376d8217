"""Resizing, blurring and shapes in arrays of 8-bit pixels, with the sampling positions and rounding that control maps
are made with everywhere: pixel centres at half units, cubic kernels with a = -0.75, averages over areas."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from modules.errors import InvalidValueError

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[Any]

CUBIC_A = -0.75
MAX_FITTED_SIDE_PX, MAX_FITTED_PIXELS = 8192, 2**25


def as_rgb(image: npt.NDArray[Any]) -> Pixels:
    """[H,W], [H,W,1], [H,W,3] or [H,W,4] as [H,W,3]; what is transparent lies on white."""
    pixels = image.astype(np.uint8, copy=False)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)
    if pixels.shape[2] == 4:
        color, alpha = pixels[:, :, :3].astype(np.float32), pixels[:, :, 3:].astype(np.float32) / 255.0
        found: Pixels = (color * alpha + 255.0 * (1.0 - alpha)).clip(0, 255).astype(np.uint8)
        return found
    return pixels


def resize_nearest(image: npt.NDArray[Any], width: int, height: int) -> npt.NDArray[Any]:
    """[H,W,...] by the pixel whose area begins at or before each place."""
    rows = np.minimum(np.floor(np.arange(height) * (image.shape[0] / height)).astype(int), image.shape[0] - 1)
    columns = np.minimum(np.floor(np.arange(width) * (image.shape[1] / width)).astype(int), image.shape[1] - 1)
    found: npt.NDArray[Any] = image[rows][:, columns]
    return found


def resize_cubic(image: npt.NDArray[Any], width: int, height: int) -> npt.NDArray[Any]:
    """[H,W,...] by cubic convolution of 4 pixels a side; floating-point images stay so."""
    return _by_taps(image, width, height, cubic_taps)


def resize_linear(image: npt.NDArray[Any], width: int, height: int) -> npt.NDArray[Any]:
    """[H,W,...] between 2 pixels a side."""
    return _by_taps(image, width, height, linear_taps)


def resize_area(image: npt.NDArray[Any], width: int, height: int) -> npt.NDArray[Any]:
    """[H,W,...] by the mean over the area that each new pixel covers. Where a side grows, pixels are repeated and
    mixed only where a new one lies across the border of two."""
    if height > image.shape[0] or width > image.shape[1]:
        return (
            _by_two_taps(image, width, height)
            if image.dtype == np.uint8
            else _by_taps(image, width, height, repeating_taps)
        )
    if (height, width) == image.shape[:2]:
        return image.copy()
    result = image.astype(np.float64)
    result = _along(result, area_weights(image.shape[0], height), 0)
    result = _along(result, area_weights(image.shape[1], width), 1)
    return _like(result, image)


def fit_side(image: Pixels, side: int) -> Pixels:
    """[H,W,3] with its short side at `side` pixels: cubic where it grows, else by area. Raises as `fitted_size`."""
    size = fitted_size(image, side)
    return resize_cubic(image, *size) if side > min(image.shape[:2]) else resize_area(image, *size)


def fitted_size(image: npt.NDArray[Any], side: int) -> tuple[int, int]:
    """Width and height of [H,W,...] with its short side at `side` pixels. Raises `InvalidValueError` where a long
    side would be too long, or all of it too large."""
    height, width = image.shape[:2]
    scale = side / min(height, width)
    size = (int(np.round(width * scale)), int(np.round(height * scale)))
    if max(size) > MAX_FITTED_SIDE_PX or size[0] * size[1] > MAX_FITTED_PIXELS:
        raise InvalidValueError(
            f"An image of {width}x{height} pixels is {size[0]}x{size[1]} at a short side of {side}; allowed are "
            f"{MAX_FITTED_SIDE_PX} pixels a side and {MAX_FITTED_PIXELS / 1e6:.0f} million in all. Give an image that "
            "is less narrow, or a lower resolution for the preprocessor."
        )
    return size


def cubic_taps(source: int, target: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return, of each new pixel along a side: indices [target,4] and weights [target,4]."""
    places = ((np.arange(target) + 0.5) * (source / target) - 0.5).astype(np.float32)
    first = np.floor(places)
    t, a = places - first, np.float32(CUBIC_A)
    before = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1
    weights = np.stack([before, near, far, 1.0 - before - near - far], axis=1)
    return first[:, None].astype(np.int64) + np.arange(-1, 3), weights


def linear_taps(source: int, target: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the same with 2 taps."""
    places = (np.arange(target) + 0.5) * (source / target) - 0.5
    first = np.floor(places)
    t = places - first
    return first[:, None].astype(np.int64) + np.arange(2), np.stack([1 - t, t], axis=1)


def repeating_taps(source: int, target: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the same where pixels are repeated: the share of the second tap is how far the new pixel reaches into
    it."""
    new = np.arange(target)
    first = np.floor(new * (source / target)).astype(np.int64)
    reach = (new + 1) - (first + 1) * (target / source)
    share = np.where(reach <= 0, 0.0, reach - np.floor(reach))
    return first[:, None] + np.arange(2), np.stack([1 - share, share], axis=1)


def area_weights(source: int, target: int) -> Floats:
    """The share that each pixel of a side has in each new one, [target,source]."""
    scale = source / target
    begins = np.arange(target)[:, None] * scale
    covered = np.minimum(begins + scale, np.arange(source) + 1.0) - np.maximum(begins, np.arange(source))
    shares: Floats = np.clip(covered, 0.0, None) / scale
    return shares


def _by_taps(image: npt.NDArray[Any], width: int, height: int, taps: Any) -> npt.NDArray[Any]:
    result = image.astype(np.float32)
    for axis, target in ((1, width), (0, height)):
        source = image.shape[axis]
        indices, weights = taps(source, target)
        matrix = np.zeros((target, source), np.float32)
        np.add.at(matrix, (np.arange(target)[:, None], np.clip(indices, 0, source - 1)), weights)
        result = _along(result, matrix, axis)
    if image.dtype == np.uint8:
        return np.clip(np.rint(result), 0, 255).astype(np.uint8)
    return result.astype(image.dtype)


TAP_BITS = 11


def _by_two_taps(image: Pixels, width: int, height: int) -> Pixels:
    """8-bit pixels repeated as `repeating_taps` says, in whole numbers: weights of 11 bits, 4 bits are dropped between
    the directions, 16 and 2 after them."""
    result = image.astype(np.int64)
    for axis, target in ((1, width), (0, height)):
        source = image.shape[axis]
        indices, weights = repeating_taps(source, target)
        shape = [-1 if place == axis else 1 for place in range(image.ndim)]
        parts = [
            np.take(result, np.minimum(indices[:, tap], source - 1), axis)
            * np.rint(weights[:, tap] * (1 << TAP_BITS)).astype(np.int64).reshape(shape)
            for tap in (0, 1)
        ]
        result = (parts[0] + parts[1]) >> 4 if axis == 1 else ((parts[0] >> 16) + (parts[1] >> 16) + 2) >> 2
    return result.clip(0, 255).astype(np.uint8)


def _along(image: Floats, weights: Floats, axis: int) -> Floats:
    return np.moveaxis(np.tensordot(weights, image, axes=(1, axis)), 0, axis)


def _like(result: Floats, image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if image.dtype == np.uint8:
        return np.clip(np.floor(result + 0.5), 0, 255).astype(np.uint8)
    return result.astype(image.dtype)


def blurred(image: npt.NDArray[Any], sigma: float) -> Floats:
    """[H,W,...] under a Gaussian, float32; edges are mirrored without their last pixel. The kernel reaches 3 sigma of
    8-bit images and 4 of others."""
    from scipy import ndimage

    reach = 6 if image.dtype == np.uint8 else 8
    size = int(np.round(sigma * reach + 1)) | 1
    offsets = np.arange(size) - size // 2
    kernel = np.exp(-(offsets**2) / (2.0 * sigma * sigma))
    kernel /= kernel.sum()
    result = image.astype(np.float32)
    for axis in (0, 1):
        result = ndimage.convolve1d(result, kernel.astype(np.float32), axis=axis, mode="mirror")
    return result


def blurred_8_bit(image: Pixels, sigma: float) -> Pixels:
    """Blur the same, rounded to 8 bits."""
    return np.clip(np.floor(blurred(image, sigma) + 0.5), 0, 255).astype(np.uint8)


def sampled_at(image: Pixels, x: Floats, y: Floats) -> Pixels:
    """[H,W,C] read at the places x, y [h,w] between 4 pixels; outside of it there is black."""
    height, width = image.shape[:2]
    padded = np.pad(image.astype(np.float64), ((1, 2), (1, 2), (0, 0)))
    x, y = np.round(x * 32) / 32, np.round(y * 32) / 32
    left, top = np.clip(np.floor(x), -1, width).astype(int), np.clip(np.floor(y), -1, height).astype(int)
    across, down = (x - left)[:, :, None], (y - top)[:, :, None]
    left, top = left + 1, top + 1
    upper = padded[top, left] * (1 - across) + padded[top, left + 1] * across
    lower = padded[top + 1, left] * (1 - across) + padded[top + 1, left + 1] * across
    found: Pixels = np.clip(np.floor(upper * (1 - down) + lower * down + 0.5), 0, 255).astype(np.uint8)
    return found


TO_XYZ = np.array(
    [[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]]
)  # of linear sRGB, D65
WHITE = np.array([0.950456, 1.0, 1.088754])
GAMMA_BITS, MATRIX_BITS = 3, 12
LAB_BITS = GAMMA_BITS + MATRIX_BITS


def in_lab(image: Pixels) -> npt.NDArray[np.int64]:
    """CIE Lab of sRGB [H,W,3] in 8 bits: L scaled to 0..255, a and b from 128 on. In whole numbers with tables, as
    8-bit images are converted everywhere."""
    levels = np.arange(256) / 255.0
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    table = np.round(linear * (255 << GAMMA_BITS)).astype(np.int64)
    shares = np.arange(384 << GAMMA_BITS) / float(255 << GAMMA_BITS)
    roots = np.where(shares < 0.008856, shares * 7.787 + 16 / 116, np.cbrt(shares))
    roots_table = np.round(roots * (1 << LAB_BITS)).astype(np.int64)
    matrix = np.round(TO_XYZ / WHITE[:, None] * (1 << MATRIX_BITS)).astype(np.int64)
    xyz = _descaled(table[image] @ matrix.T, MATRIX_BITS)
    x, y, z = (roots_table[xyz[:, :, place]] for place in range(3))
    middle = 128 << LAB_BITS
    light = _descaled((116 * 255 + 50) // 100 * y - (16 * 255 * (1 << LAB_BITS) + 50) // 100, LAB_BITS)
    return np.stack(
        [light, _descaled(500 * (x - y) + middle, LAB_BITS), _descaled(200 * (y - z) + middle, LAB_BITS)], axis=2
    ).clip(0, 255)


def _descaled(values: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    return (values + (1 << (bits - 1))) >> bits


def lightness(image: Pixels) -> Pixels:
    """L of CIE Lab of [H,W,3], scaled to 0..255, [H,W]."""
    return in_lab(image)[:, :, 0].astype(np.uint8)


def with_lightness(image: Pixels, level: Pixels) -> Pixels:
    """[H,W,3] with L of Lab replaced by `level` [H,W] (0..255)."""
    lab = in_lab(image)
    a, b = lab[:, :, 1] - 128.0, lab[:, :, 2] - 128.0
    light = level.astype(np.float64) / 2.55
    y = np.where(light > 8.0, ((light + 16) / 116) ** 3, light / 903.3)
    fy = np.where(light > 8.0, (light + 16) / 116, 7.787 * y + 16 / 116)
    fs = np.stack([fy + a / 500, fy, fy - b / 200], axis=-1)
    cubes = np.where(fs > 6 / 29, fs**3, (fs - 16 / 116) / 7.787)
    cubes[..., 1] = y
    back = np.clip((cubes * WHITE) @ np.linalg.inv(TO_XYZ).T, 0, 1)
    srgb = np.where(back <= 0.0031308, back * 12.92, 1.055 * back ** (1 / 2.4) - 0.055)
    found: Pixels = np.clip(np.round(srgb * 255), 0, 255).astype(np.uint8)
    return found
