"""Differences between two images: as an image, as numbers, and in the parameters that they were made with."""

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageChops

from modules.errors import InvalidValueError
from modules.images.infotext import unquote, written_fields

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


def differing_values(first: str, second: str) -> list[tuple[str, str | None, str | None]]:
    """The keys of two infotexts whose values differ, with both values: prompts first, then in the order in which they
    are written. None: that image does not have the key."""
    one, other = (_written(text) for text in (first, second))
    keys = [*one, *(key for key in other if key not in one)]
    return [(key, one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)]


def _written(infotext: str) -> dict[str, str]:
    prompt, negative, fields = written_fields(infotext) if infotext else ("", "", {})
    plain = {key: unquote(text) for key, text in fields.items()}
    return {key: text for key, text in (("Prompt", prompt), ("Negative prompt", negative)) if text} | plain
