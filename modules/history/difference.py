"""What differs between two images: as an image, and as numbers."""

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageChops

from modules.errors import InvalidValueError

AMPLIFIED = 8
PEAK = 255.0


@dataclass(frozen=True)
class Difference:
    """`image`: the absolute difference, amplified `AMPLIFIED` times; black where they are equal. `psnr_db` is None for
    equal images; levels are of 255."""

    image: Image.Image
    psnr_db: float | None
    largest_level: int
    mean_level: float


def difference(first: Image.Image, second: Image.Image) -> Difference:
    """Compare two images of one size, in RGB. Raises `InvalidValueError` for other sizes."""
    if first.size != second.size:
        raise InvalidValueError(f"The images have other sizes: {first.size} and {second.size}; choose two of one size.")
    apart = ImageChops.difference(first.convert("RGB"), second.convert("RGB"))
    levels = np.asarray(apart, dtype=np.float64)
    error = float((levels**2).mean())
    return Difference(
        apart.point(lambda level: min(level * AMPLIFIED, 255)),
        None if error == 0 else float(10 * np.log10(PEAK**2 / error)),
        int(levels.max()),
        float(levels.mean()),
    )
