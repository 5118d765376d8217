"""Colors of a foreground without those of the background behind its edges (Forte 2021, "Approximate fast foreground
colour estimation", ICIP): both are smoothed by how much a pixel belongs to them, and what then does not add up to the
image goes to the foreground."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

Floats = npt.NDArray[np.float32]
RADII = (90, 6)
"""Half the sides of the squares over which colors are smoothed, one pass after the other, in pixels."""
PART, AROUND = 1024, sum(RADII)
"""Side of what is worked on at once, and of what is seen around it, in pixels."""


def decontaminated(image: Image.Image, mask: Image.Image) -> Image.Image:
    """The colors ("RGB") of the foreground that a mask ("L") shows, where it is neither whole nor nothing; elsewhere
    those of the image."""
    found = image.convert("RGB")
    for top in range(0, image.height, PART):
        for left in range(0, image.width, PART):
            inner = (left, top, min(left + PART, image.width), min(top + PART, image.height))
            if not sum(mask.crop(inner).histogram()[1:255]):
                continue
            outer = (
                max(left - AROUND, 0),
                max(top - AROUND, 0),
                min(inner[2] + AROUND, image.width),
                min(inner[3] + AROUND, image.height),
            )
            colors = _foreground(image.crop(outer).convert("RGB"), mask.crop(outer))
            place = (inner[0] - outer[0], inner[1] - outer[1], inner[2] - outer[0], inner[3] - outer[1])
            edges = mask.crop(inner).point(lambda value: 255 if 0 < value < 255 else 0)
            found.paste(colors.crop(place), inner[:2], edges)
    return found


def _foreground(image: Image.Image, mask: Image.Image) -> Image.Image:
    whole = np.asarray(image, np.float32) / 255.0
    alpha = np.asarray(mask, np.float32)[:, :, None] / 255.0
    front = back = whole
    for radius in RADII:
        front, back = _smoothed(front, alpha, radius), _smoothed(back, 1.0 - alpha, radius)
        front = np.clip(front + alpha * (whole - alpha * front - (1.0 - alpha) * back), 0.0, 1.0)
    return Image.fromarray((front * 255.0).round().astype(np.uint8))


def _smoothed(colors: Floats, weights: Floats, radius: int) -> Floats:
    """The mean of colors [H,W,3] around each pixel, weighted by [H,W,1]."""
    found: Floats = _sums(colors * weights, radius) / (_sums(weights, radius) + np.float32(1e-5))
    return found


def _sums(values: Floats, radius: int) -> Floats:
    """The means of [H,W,C] over squares of 2 * radius + 1 pixels, edges repeated."""
    from scipy.ndimage import uniform_filter1d

    for axis in (0, 1):
        values = uniform_filter1d(values, 2 * radius + 1, axis=axis, mode="nearest")
    return values
