"""The test of the bundled model: 96 prompts, and whether the drawn background and shape have the asked colors."""

from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from recipes.scenes.captions import plain_caption
from recipes.scenes.layout import SHAPES, SIZES
from recipes.scenes.palette import COLORS, nearest_color

LANDSCAPE_PROMPTS = (
    "sea at sunset with a sailboat, sun",
    "snow at night with a red house with a black roof, trees, moon",
    "desert by day with the sun",
    "meadow by day with mountains, trees and the sun",
    "sea at night with the moon",
    "meadow at sunset with a white house with a red roof and the sun",
    "snow by day with mountains and trees",
    "desert at night with a blue house with a brown roof and the moon",
)


@dataclass(frozen=True)
class ColorPrompt:
    """A prompt of the test with what must be seen."""

    text: str
    shape: str
    color: str
    background: str
    seed: int


def color_prompts(count: int = 96, seed: int = 2024) -> list[ColorPrompt]:
    """The test's prompts: every shape equally often, colors and sizes drawn once and for all from `seed`."""
    rng = Random(seed)
    prompts = []
    for i in range(count):
        color, background = rng.sample(list(COLORS), 2)
        shape, size = SHAPES[i % len(SHAPES)], rng.choice(SIZES)
        text = plain_caption(size, color, shape, background)
        prompts.append(ColorPrompt(text=text, shape=shape, color=color, background=background, seed=1000 + i))
    return prompts


def background_color(image: NDArray[np.uint8]) -> str:
    """The palette color nearest to the median of the outer 6 pixels; `image` is [height, width, 3]."""
    border = np.ones(image.shape[:2], dtype=bool)
    border[6:-6, 6:-6] = False
    return _nearest(np.median(image[border], axis=0))


def shape_color(image: NDArray[np.uint8]) -> str:
    """The palette color of what stands out: the most frequent one among the pixels far from the background.

    Pixels count by their distance to the border's median, so that soft edges weigh little.
    """
    border = np.ones(image.shape[:2], dtype=bool)
    border[6:-6, 6:-6] = False
    pixels = image.reshape(-1, 3).astype(np.float64)
    distance = np.linalg.norm(pixels - np.median(image[border], axis=0), axis=1)
    threshold = max(30.0, 0.6 * float(np.percentile(distance, 98)))
    standing_out = pixels[distance >= threshold]
    if len(standing_out) == 0:
        return "none"
    names = list(COLORS)
    table = np.array([COLORS[name] for name in names], dtype=np.float64)
    nearest = np.argmin(((standing_out[:, None] - table) ** 2).sum(-1), axis=1)
    return names[int(np.bincount(nearest, minlength=len(names)).argmax())]


def _nearest(rgb: NDArray[np.float64]) -> str:
    return nearest_color((float(rgb[0]), float(rgb[1]), float(rgb[2])))
