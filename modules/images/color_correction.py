"""Color correction of img2img: the result gets the color distribution of the image it began with.

Per channel of CIE L*a*b* the histogram of the result is matched to that of the first image (Gonzalez and Woods, Digital
Image Processing, section 3.3), then the result's own luminosity is put back (W3C Compositing and Blending Level 1,
section 10.4), so that only hue and saturation move.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_TO_XYZ = np.array([[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]])
_WHITE = np.array([0.950456, 1.0, 1.088754])  # D65
_LUMINOSITY = np.array([0.3, 0.59, 0.11])

Levels = NDArray[np.uint8]
Values = NDArray[np.float64]
Fixed = NDArray[np.int64]


def _linear_levels() -> Fixed:
    """Linear light of the 256 levels of sRGB, times 255 and 2^3."""
    values = np.arange(256) / 255.0
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    levels: Fixed = np.rint(linear * 255.0 * (1 << _LINEAR_BITS)).astype(np.int64)
    return levels


def _root_levels() -> Fixed:
    """The cube root of CIE L*a*b*, straight near black, of linear light as above, times 2^15."""
    values = np.arange(3 * (256 << _LINEAR_BITS) // 2) / (255.0 * (1 << _LINEAR_BITS))
    roots = np.where(values < 0.008856, values * 7.787 + 16.0 / 116.0, np.cbrt(values))
    levels: Fixed = np.rint(roots * (1 << _ROOT_BITS)).astype(np.int64)
    return levels


def _descaled(values: Fixed, bits: int) -> Fixed:
    """Fixed point to whole numbers, rounded."""
    return (values + (1 << (bits - 1))) >> bits


_LINEAR_BITS, _XYZ_BITS, _ROOT_BITS = 3, 12, 15
_LINEAR, _ROOTS = _linear_levels(), _root_levels()
_FIXED_TO_XYZ = np.rint(_TO_XYZ / _WHITE[:, None] * (1 << _XYZ_BITS)).astype(np.int64)
_LIGHTNESS_SCALE = (116 * 255 + 50) // 100
_LIGHTNESS_OFFSET = (16 * 255 * (1 << _ROOT_BITS) + 50) // 100


def color_target(image: Image.Image) -> Levels:
    """Return what results are corrected to: the image in L*a*b*, [H,W,3] in 8 bits."""
    return _to_lab(np.asarray(image.convert("RGB")))


def corrected(image: Image.Image, target: Levels) -> Image.Image:
    """The image [RGB] with the color distribution of `target`, and its own luminosity."""
    own = np.asarray(image.convert("RGB"))
    lab = _to_lab(own)
    matched = np.stack([_matched(lab[..., i], target[..., i]) for i in range(3)], axis=-1)
    return Image.fromarray(_with_luminosity(_to_rgb(matched), own))


def _matched(source: Levels, target: Levels) -> Levels:
    """One channel with the cumulative histogram of another."""
    counts = np.bincount(source.reshape(-1), minlength=256)
    wanted = np.bincount(target.reshape(-1), minlength=256)
    levels = np.nonzero(wanted)[0]
    quantiles = np.cumsum(counts) / source.size
    table = np.interp(quantiles, np.cumsum(wanted[levels]) / target.size, levels)
    matched: Levels = table[source].astype(np.uint8)
    return matched


def _to_lab(rgb: Levels) -> Levels:
    """sRGB in 8 bits to L*a*b* in 8 bits (L * 255 / 100, a + 128, b + 128), in the fixed-point arithmetic of OpenCV's
    conversion: matching histograms turns a level more or less into many."""
    linear = _LINEAR[rgb]
    roots = _ROOTS[_descaled(linear @ _FIXED_TO_XYZ.T, _XYZ_BITS)]
    lightness = _descaled(_LIGHTNESS_SCALE * roots[..., 1] - _LIGHTNESS_OFFSET, _ROOT_BITS)
    a = _descaled(500 * (roots[..., 0] - roots[..., 1]), _ROOT_BITS) + 128
    b = _descaled(200 * (roots[..., 1] - roots[..., 2]), _ROOT_BITS) + 128
    levels: Levels = np.stack([lightness, a, b], axis=-1).clip(0, 255).astype(np.uint8)
    return levels


def _to_rgb(lab: Levels) -> Levels:
    lightness = lab[..., 0] * (100.0 / 255.0)
    a, b = lab[..., 1] - 128.0, lab[..., 2] - 128.0
    is_dark = lightness <= 7.9996248
    y = np.where(is_dark, lightness / 903.3, ((lightness + 16.0) / 116.0) ** 3)
    root_y = np.where(is_dark, 7.787 * y + 16.0 / 116.0, (lightness + 16.0) / 116.0)
    roots = np.stack([a / 500.0 + root_y, root_y - b / 200.0], axis=-1)
    xz = np.where(roots <= 6.0 / 29.0, (roots - 16.0 / 116.0) / 7.787, roots**3)
    xyz = np.stack([xz[..., 0], y, xz[..., 1]], axis=-1) * _WHITE
    linear = (xyz @ np.linalg.inv(_TO_XYZ).T).clip(0.0, 1.0)
    values = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    levels: Levels = np.rint(values * 255.0).clip(0, 255).astype(np.uint8)
    return levels


def _with_luminosity(colors: Levels, lights: Levels) -> Levels:
    """Hue and saturation of one image, the luminosity of another; out-of-range colors are drawn towards their grey."""
    base, light = colors / 255.0, (lights / 255.0) @ _LUMINOSITY
    mixed: Values = base + (light - base @ _LUMINOSITY)[..., None]
    grey = (mixed @ _LUMINOSITY)[..., None]
    low, high = mixed.min(axis=-1, keepdims=True), mixed.max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        mixed = np.where(low < 0.0, grey + (mixed - grey) * grey / (grey - low), mixed)
        mixed = np.where(high > 1.0, grey + (mixed - grey) * (1.0 - grey) / (high - grey), mixed)
    levels: Levels = (mixed * 255.0).clip(0, 255).astype(np.uint8)
    return levels
