"""The test of the bundled model: 96 prompts for one shape, whether the drawn background and shape have the asked
colors, and eight landscapes, whether each shows what it should."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recipes.scenes.captions import plain_caption
from recipes.scenes.forms import Mask, best_overlap, border_of
from recipes.scenes.images import draw
from recipes.scenes.layout import SHAPES, SIZE_PX, SIZES, House, Landscape
from recipes.scenes.palette import (
    COLORS,
    DOOR,
    LANDS,
    LEAVES,
    MOON,
    MOUNTAIN,
    SAIL,
    SKIES,
    SUN,
    WOOD,
    Rgb,
    nearest_color,
)

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
WORDS = (*LANDS, "day", "sunset", "night", "sun", "moon", "mountains", "trees", "sailboat")
MIN_PART_OVERLAP = 0.6
MIN_PART_PX = 200
FOREIGN_DISTANCE = 45.0  # of a color from all that a landscape has
MAX_FOREIGN = 0.05


@dataclass(frozen=True)
class ColorPrompt:
    """A prompt of the test with what must be seen."""

    text: str
    shape: str
    size: str
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
        prompts.append(
            ColorPrompt(text=text, shape=shape, size=size, color=color, background=background, seed=1000 + i)
        )
    return prompts


def background_color(image: NDArray[np.uint8]) -> str:
    """The palette color nearest to the median of the outer 6 pixels; `image` is [height, width, 3]."""
    return _nearest(np.median(border_of(image), axis=0))


def shape_color(image: NDArray[np.uint8]) -> str:
    """The palette color of what stands out: the most frequent one among the pixels far from the background.

    Pixels count by their distance to the border's median, so that soft edges weigh little.
    """
    pixels = image.reshape(-1, 3).astype(np.float64)
    distance = np.linalg.norm(pixels - np.median(border_of(image), axis=0), axis=1)
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


@dataclass(frozen=True)
class SeenLandscape:
    """What a landscape shows of what was asked: `overlaps` of each thing of which there is one with its ideal form
    where that fits best, `areas_px` of what comes in any number, and `foreign`, the share of pixels that have none of
    its colors."""

    place: bool  # sky and land have their colors
    overlaps: dict[str, float]
    areas_px: dict[str, int]
    foreign: float

    @property
    def right(self) -> bool:
        """Whether it shows all that was asked, each in its form, and little else."""
        return (
            self.place
            and all(value >= MIN_PART_OVERLAP for value in self.overlaps.values())
            and all(value >= MIN_PART_PX for value in self.areas_px.values())
            and self.foreign <= MAX_FOREIGN
        )


def seen_in_landscape(image: Image.Image, prompt: str) -> SeenLandscape:
    """Look at a 128x128 image that was drawn for one of `LANDSCAPE_PROMPTS`."""
    asked = _words_of(prompt)
    house = re.search(r"(\w+) house with an? (\w+) roof", prompt)
    colors = _colors_of(asked, house)
    overlaps = {}
    for name, part_colors, examples in _parts(asked, house):
        masks = _masks(image, colors, part_colors)
        templates = [_masks(draw(example), colors, part_colors) for example in examples]
        overlaps[name] = round(best_overlap(masks, templates), 3)
    many = {"mountains": MOUNTAIN, "trees": LEAVES}
    areas = {name: int(_masks(image, colors, (color,))[0].sum()) for name, color in many.items() if name in asked}
    pixels = np.asarray(image.convert("RGB"), dtype=np.float64)
    distance = np.linalg.norm(pixels[:, :, None] - np.array(colors, dtype=np.float64), axis=-1).min(-1)
    top, bottom = (np.median(pixels[rows].reshape(-1, 3), axis=0) for rows in (np.s_[:12], np.s_[-12:]))
    place = all(
        min(known, key=lambda name: float(np.linalg.norm(seen - np.array(known[name])))) in asked
        for known, seen in ((SKIES, top), (LANDS, bottom))
    )
    return SeenLandscape(place, overlaps, areas, round(float((distance > FOREIGN_DISTANCE).mean()), 4))


def _words_of(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text)) & frozenset(WORDS)


def _colors_of(asked: frozenset[str], house: re.Match[str] | None) -> list[Rgb]:
    """All colors that a landscape with these words has."""
    things: dict[str, tuple[Rgb, ...]] = {
        "sun": (SUN,),
        "moon": (MOON,),
        "mountains": (MOUNTAIN,),
        "trees": (LEAVES, WOOD),
        "sailboat": (SAIL, WOOD),
    }
    found = [color for name, color in (*SKIES.items(), *LANDS.items()) if name in asked]
    found += [color for name, colors in things.items() if name in asked for color in colors]
    return found if house is None else [*found, COLORS[house[1]], COLORS[house[2]], DOOR]


def _parts(
    asked: frozenset[str], house: re.Match[str] | None
) -> Iterator[tuple[str, tuple[Rgb, ...], list[Landscape]]]:
    """Name, colors and ideal landscapes of each thing that an image has once."""
    land = next(name for name in LANDS if name in asked)
    time = next(name for name in SKIES if name in asked)
    body = "moon" if time == "night" else "sun"
    if body in asked:
        high = Landscape(land=land, time=time, horizon=90, sky_body=(64, 40))
        yield body, (MOON if time == "night" else SUN,), [high]
    if "sailboat" in asked:
        yield "sailboat", (SAIL, WOOD), [Landscape(land=land, time=time, horizon=60, sailboat=(64, 80))]
    if house is not None:
        widths = range(32, 39)
        houses = [House(color=house[1], roof=house[2], x=64, base=90, width=width) for width in widths]
        examples = [Landscape(land=land, time=time, horizon=80, house=one) for one in houses]
        yield "house", (COLORS[house[1]], COLORS[house[2]], DOOR), examples


def _masks(image: Image.Image, colors: list[Rgb], wanted: tuple[Rgb, ...]) -> list[Mask]:
    """Where an image is nearest to each of the wanted colors, of all that it should have; without lines and dots."""
    from scipy import ndimage  # slow to import, and training does not need it

    pixels = np.asarray(image.convert("RGB").resize((SIZE_PX, SIZE_PX)), dtype=np.float64)
    nearest = ((pixels[:, :, None] - np.array(colors, dtype=np.float64)) ** 2).sum(-1).argmin(-1)
    return [ndimage.binary_opening(nearest == colors.index(color), structure=np.ones((3, 3))) for color in wanted]
