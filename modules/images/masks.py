"""Masks of inpainting: read, blurred, cropped to their area, filled underneath, and pasted back over the result.

A mask is an image of mode "L": 255 is repainted, 0 is kept.
"""

from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFilter, ImageOps

from modules.images.resize import ResizeMode, Scaler, resize_image, scale_lanczos

FILL_BLURS = ((256, 1), (64, 1), (16, 2), (4, 4), (2, 2), (0, 1))
"""(radius in pixels, how often it is composited) of `fill_masked`, from far to near."""


class Box(NamedTuple):
    """A rectangle in pixels; the right and bottom edges are outside of it."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.right - self.left, self.bottom - self.top


def to_mask(image: Image.Image, is_binary: bool = True) -> Image.Image:
    """The mask in an image: its transparency where it has some (painted where opaque), else its luminance.

    With `is_binary` an alpha channel is cut at one half; a mask given as luminance keeps its values.
    """
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode == "LA":
        image = image.convert("RGBA")
    if image.mode == "RGBA" and image.getchannel("A").getextrema() != (255, 255):
        alpha = image.getchannel("A")
        return alpha.point(lambda value: 255 if value > 128 else 0) if is_binary else alpha
    return image.convert("L")


def blur_mask(mask: Image.Image, blur_x_px: float, blur_y_px: float) -> Image.Image:
    """Gaussian blur with a standard deviation for each direction; a deviation of 0 leaves that direction alone."""
    from scipy.ndimage import correlate1d  # slow to import, and a start does not need it

    values = np.asarray(mask, dtype=np.float64)
    for axis, sigma in ((1, blur_x_px), (0, blur_y_px)):
        if sigma <= 0:
            continue
        reach = int(2.5 * sigma + 0.5)
        offsets = np.arange(-reach, reach + 1)
        kernel = np.exp(-(offsets**2) / (2 * sigma**2))
        values = np.rint(correlate1d(values, kernel / kernel.sum(), axis=axis, mode="mirror"))
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def masked_area(mask: Image.Image, padding_px: int) -> Box | None:
    """The smallest box around everything painted, grown by `padding_px` inside the image; None for an empty mask."""
    found = mask.getbbox()
    if found is None:
        return None
    left, top, right, bottom = found
    return Box(
        max(left - padding_px, 0),
        max(top - padding_px, 0),
        min(right + padding_px, mask.width),
        min(bottom + padding_px, mask.height),
    )


def grown_to_aspect(area: Box, size: tuple[int, int], within: tuple[int, int]) -> Box:
    """`area` made wider or higher until it has the aspect ratio of `size`, as far as the image `within` allows.

    Sizes are (width, height) in pixels. The box grows on both sides and is moved back where it crosses an edge.
    """
    width, height = area.size
    if width / height > size[0] / size[1]:
        wanted = int(width / (size[0] / size[1]) - height)
        top, bottom = _grown(area.top, area.bottom, wanted, within[1])
        return Box(area.left, top, area.right, bottom)
    wanted = int(height * (size[0] / size[1]) - width)
    left, right = _grown(area.left, area.right, wanted, within[0])
    return Box(left, area.top, right, area.bottom)


def _grown(low: int, high: int, by: int, limit: int) -> tuple[int, int]:
    low, high = low - by // 2, high + by - by // 2
    if high >= limit:
        low, high = low - (high - limit), limit
    if low < 0:
        low, high = 0, high - low
    return low, min(high, limit)


def fill_masked(image: Image.Image, mask: Image.Image) -> Image.Image:
    """The image [RGB] with the masked part painted over by the colors around it, blurred more and more into it."""
    kept = _kept(image, mask).convert("RGBa")
    filled = Image.new("RGBA", image.size)
    for radius, times in FILL_BLURS:
        layer = kept.filter(ImageFilter.GaussianBlur(radius)).convert("RGBA")
        for _ in range(times):
            filled.alpha_composite(layer)
    return filled.convert("RGB")


def overlay_of(image: Image.Image, mask: Image.Image) -> Image.Image:
    """Return what is kept of the image [RGBA of the same size]: transparent where the mask says that it is painted
    again."""
    return _kept(image, mask).convert("RGBA")


def _kept(image: Image.Image, mask: Image.Image) -> Image.Image:
    kept = Image.new("RGBa", image.size)
    kept.paste(image.convert("RGBA").convert("RGBa"), mask=ImageOps.invert(mask.convert("L")))
    return kept


def paste_back(
    result: Image.Image, overlay: Image.Image, area: Box | None = None, scale: Scaler = scale_lanczos
) -> Image.Image:
    """The result [RGB] under what is kept; with `area`, the result is first scaled into that box of the whole image."""
    if area is not None:
        result = placed(result, overlay.size, area, scale)
    result = result.convert("RGBA")
    result.alpha_composite(overlay)
    return result.convert("RGB")


def placed(result: Image.Image, size_px: tuple[int, int], area: Box, scale: Scaler = scale_lanczos) -> Image.Image:
    """The result scaled into a box of an image [RGBA] of this width and height that is transparent elsewhere."""
    whole = Image.new("RGBA", size_px)
    whole.paste(resize_image(result, *area.size, ResizeMode.CROP_AND_RESIZE, scale), (area.left, area.top))
    return whole


def painted_part(result: Image.Image, mask: Image.Image) -> Image.Image:
    """Return what of a result the mask ("L") has repainted [RGBA]; transparent where it keeps the image."""
    fitting = resize_image(mask, *result.size, ResizeMode.RESIZE_AND_FILL).convert("L")
    return Image.composite(result.convert("RGBA").convert("RGBa"), Image.new("RGBa", result.size), fitting).convert(
        "RGBA"
    )


def flattened(image: Image.Image, background: str) -> Image.Image:
    """The image as RGB, its transparent parts over a color like `#ffffff`."""
    if image.mode in ("RGBA", "LA", "PA") or (image.mode == "P" and "transparency" in image.info):
        over = Image.new("RGBA", image.size, background)
        over.alpha_composite(image.convert("RGBA"))
        return over.convert("RGB")
    return image.convert("RGB")
