"""A larger canvas around an image: what is first put there, and how the result is joined to the pixels that are kept.

Sizes and margins are in pixels. Nothing here changes a kept pixel.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.float32]
BLUR_PER_PX = 0.25  # how fast the mirrored content loses its detail with the distance
BLUR_LEVELS = (0, 4, 8, 16, 32)  # standard deviations
BORDER_PX = 32  # whose statistics the noise has
BROAD_PX = 12  # of the difference at the seam, what is smooth at this scale reaches far, the rest only a little
BROAD_REACH_PX = 48
FINE_REACH_PX = 6


class Margins(NamedTuple):
    """How much the canvas has more than the image, on each side."""

    left: int = 0
    right: int = 0
    up: int = 0
    down: int = 0

    def size_of(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height of the canvas around an image of this size."""
        return size[0] + self.left + self.right, size[1] + self.up + self.down

    def kept(self, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Where the image lies on a canvas of this size: left, top, right, bottom."""
        return self.left, self.up, size[0] - self.right, size[1] - self.down


def grown(image: Image.Image, margins: Margins, seed: int) -> Image.Image:
    """The image [RGB] on its canvas. Around it is what it has at its border, mirrored and more and more blurred with
    the distance, under noise that has the border's own contrast, color by color; the same for the same seed."""
    from scipy.ndimage import gaussian_filter  # slow to import, and a start does not need it

    pixels = np.asarray(image, dtype=np.float32)
    around = ((margins.up, margins.down), (margins.left, margins.right))
    canvas = np.pad(pixels, (*around, (0, 0)), mode="symmetric")
    distance = distance_px(margins.size_of(image.size), margins)
    layers = [canvas if sigma == 0 else gaussian_filter(canvas, (sigma, sigma, 0)) for sigma in BLUR_LEVELS]
    content = layers[0]
    for before, sigma, layer in zip(BLUR_LEVELS, BLUR_LEVELS[1:], layers[1:], strict=False):
        share = np.clip((distance * BLUR_PER_PX - before) / (sigma - before), 0, 1)[..., None]
        content = content + (layer - content) * share
    detail = pixels - gaussian_filter(pixels, (BLUR_LEVELS[1], BLUR_LEVELS[1], 0))
    deviation = detail[_border(pixels.shape[:2], margins)].std(axis=0)
    drawn = np.random.default_rng(seed).standard_normal(canvas.shape, dtype=np.float32)
    noise = gaussian_filter(drawn, (1, 1, 0))
    content = (
        content + noise / max(float(noise.std()), 1e-6) * deviation * np.clip(distance / BORDER_PX, 0, 1)[..., None]
    )
    content[distance == 0] = canvas[distance == 0]
    return Image.fromarray(content.clip(0, 255).round().astype(np.uint8))


def painted_mask(size: tuple[int, int], margins: Margins, inside: Image.Image | None = None) -> Image.Image:
    """The mask ("L", 255 is repainted) of a canvas of this size; `inside` is that of the image itself."""
    mask = Image.new("L", size, 255)
    left, top, right, bottom = margins.kept(size)
    mask.paste(inside if inside is not None else 0, (left, top, right, bottom))
    return mask


def on_canvas(overlay: Image.Image, margins: Margins) -> Image.Image:
    """An overlay [RGBA] on a transparent canvas."""
    canvas = Image.new("RGBA", margins.size_of(overlay.size))
    canvas.paste(overlay, (margins.left, margins.up))
    return canvas


def joined(result: Image.Image, overlay: Image.Image, margins: Margins) -> Image.Image:
    """The result [RGB] with the kept pixels of the overlay [RGBA] over it. At the seam both differ, since a VAE does
    not give back what it was given; around the kept pixels the result is moved by that difference, which fades with the
    distance."""
    from scipy.ndimage import gaussian_filter  # slow to import, and a start does not need it

    made = np.asarray(result, dtype=np.float32)
    kept = np.asarray(overlay, dtype=np.float32)
    alpha = kept[..., 3:] / 255.0
    difference = (kept[..., :3] - made) * alpha
    left, top, right, bottom = margins.kept(result.size)
    inside = difference[top:bottom, left:right]
    around = ((margins.up, margins.down), (margins.left, margins.right), (0, 0))
    broad = gaussian_filter(inside, (BROAD_PX, BROAD_PX, 0), mode="nearest")
    distance = distance_px(result.size, margins)
    shift = np.zeros_like(made)
    for part, reach in ((broad, BROAD_REACH_PX), (inside - broad, FINE_REACH_PX)):
        fade = np.clip(1 - distance / reach, 0, 1)[..., None]
        shift += np.pad(part, around, mode="edge") * fade * fade * (3 - 2 * fade)
    outside = (distance > 0)[..., None]
    whole = np.where(outside, made + shift, made * (1 - alpha) + kept[..., :3] * alpha)
    return Image.fromarray(whole.clip(0, 255).round().astype(np.uint8))


def distance_px(size: tuple[int, int], margins: Margins) -> Pixels:
    """[H,W]: how far each place of a canvas of this size is from the kept image; 0 inside."""
    from scipy.ndimage import distance_transform_edt  # slow to import, and a start does not need it

    outside = np.ones((size[1], size[0]), dtype=bool)
    left, top, right, bottom = margins.kept(size)
    outside[top:bottom, left:right] = False
    found: Pixels = distance_transform_edt(outside).astype(np.float32)
    return found


def _border(shape: tuple[int, ...], margins: Margins) -> NDArray[np.bool_]:
    """[H,W] of the image: its strips at the sides where the canvas grows."""
    near = np.zeros(shape, dtype=bool)
    if margins.left:
        near[:, :BORDER_PX] = True
    if margins.right:
        near[:, -BORDER_PX:] = True
    if margins.up:
        near[:BORDER_PX] = True
    if margins.down:
        near[-BORDER_PX:] = True
    return near
