"""Captions for the bundled model's world, by looking at colors and outlines: one or two flat shapes on a plain
background, and simple landscapes. No model and no torch; an image of anything else gets no caption. Interrogate says
this where no captioning model is installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import cos, pi, sin
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from modules.captioning.captioners import DESCRIBERS

SIDE_PX = 128  # images are looked at in this size
MASK_PX = 48  # outlines are compared in this size
BORDER_PX = 6
PLAIN_DISTANCE = 48.0  # of colors on a background that is one
FOREGROUND_DISTANCE = 60.0  # of a shape's color from the background's
MIN_SHAPE_PX = 250
MIN_LIKENESS = 0.55  # of an outline: what both cover, of what either covers

Rgb = tuple[int, int, int]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

COLORS: dict[str, Rgb] = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (40, 80, 220),
    "yellow": (240, 210, 40),
    "orange": (245, 140, 30),
    "purple": (140, 60, 190),
    "pink": (245, 130, 180),
    "cyan": (60, 200, 220),
    "white": (245, 245, 245),
    "black": (25, 25, 25),
    "gray": (130, 130, 130),
    "brown": (130, 80, 40),
}
SKIES: dict[str, Rgb] = {"by day": (120, 190, 245), "at sunset": (250, 140, 80), "at night": (20, 25, 60)}
LANDS: dict[str, Rgb] = {
    "sea": (30, 100, 180),
    "meadow": (70, 160, 70),
    "desert": (225, 190, 110),
    "snow": (240, 245, 250),
}
THINGS: dict[str, Rgb] = {"sun": (255, 225, 90), "mountains": (110, 110, 125), "trees": (25, 110, 50)}
MOON: Rgb = (240, 240, 210)
SCENE_DISTANCE = 75.0  # of sky and land from the colors they have


@dataclass(frozen=True)
class _Shape:
    name: str
    color: str
    size: str
    left: float


def describe(image: Image.Image) -> str | None:
    """A caption, or None for an image that is none of these."""
    pixels = np.asarray(image.convert("RGB").resize((SIDE_PX, SIDE_PX), Image.Resampling.BOX), np.float64)
    return _shapes_caption(pixels) or _landscape_caption(pixels)


# -- shapes ----------------------------------------------------------------------------------------------------------


def _shapes_caption(pixels: Floats) -> str | None:
    border = np.concatenate(
        [
            pixels[:BORDER_PX].reshape(-1, 3),
            pixels[-BORDER_PX:].reshape(-1, 3),
            pixels[:, :BORDER_PX].reshape(-1, 3),
            pixels[:, -BORDER_PX:].reshape(-1, 3),
        ]
    )
    background = np.median(border, axis=0)
    if np.mean(_distance(border, background) < PLAIN_DISTANCE) < 0.9:
        return None
    shapes = sorted(_shapes(pixels, _distance(pixels, background)), key=lambda shape: shape.left)
    if not shapes or len(shapes) > 2:
        return None
    things = " and ".join(_with_article(f"{one.size} {one.color} {one.name}".strip()) for one in shapes)
    return f"{things} on {_with_article(_nearest(background, COLORS))} background"


def _shapes(pixels: Floats, distances: Floats) -> Iterable[_Shape]:
    """Find what stands out from the background; `distances` [h,w] are those of the colors from the background's."""
    from scipy import ndimage  # slow to import, and a start does not need it

    labels, count = ndimage.label(distances > FOREGROUND_DISTANCE, structure=np.ones((3, 3)))
    boxes = ndimage.find_objects(labels)
    found = [(index + 1, box) for index, box in enumerate(boxes[:count])]
    found = [(label, box) for label, box in found if np.sum(labels[box] == label) >= MIN_SHAPE_PX]
    for label, box in found:
        mask = labels[box] == label
        # Soft edges make an outline rounder than it is: it goes where the color is halfway there.
        mask &= distances[box] > 0.5 * float(np.percentile(distances[box][mask], 90))
        name, likeness = _shape_of(_cut(mask))
        if likeness < MIN_LIKENESS:
            continue
        inner = ndimage.binary_erosion(mask, iterations=2)
        color = np.median(pixels[box][inner if inner.sum() >= 20 else mask], axis=0)
        radius = _radius(name, *_cut(mask).shape)
        yield _Shape(name, _nearest(color, COLORS), _size_word(radius, len(found)), float(box[1].start))


def _cut(mask: Mask) -> Mask:
    """A mask without the empty rows and columns around it."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _size_word(radius: float, count: int) -> str:
    """Two shapes in an image are smaller than one."""
    small, large = (21.0, 99.0) if count > 1 else (26.5, 38.5)
    return "small" if radius < small else "large" if radius > large else ""


def _radius(name: str, height: int, width: int) -> float:
    """Measure the circle around a shape, from the box around it."""
    if name == "triangle":
        return height / 1.5
    if name == "star":
        return height / (1 + cos(pi / 5))
    if name == "square":
        return max(height, width) / 2 / 0.82
    return max(height, width) / 2


def _shape_of(mask: Mask) -> tuple[str, float]:
    """The outline that a component [h,w] is most like, and how like it is, 0 to 1."""
    seen = np.asarray(Image.fromarray(mask.astype(np.uint8) * 255).resize((MASK_PX, MASK_PX))) > 127
    scores = {name: (seen & outline).sum() / (seen | outline).sum() for name, outline in _outlines().items()}
    best = max(scores, key=lambda name: float(scores[name]))
    return best, float(scores[best])


@cache
def _outlines() -> dict[str, Mask]:
    """The shapes as masks that fill their boxes."""
    circle = [(sin(2 * pi * i / 90), -cos(2 * pi * i / 90)) for i in range(90)]
    star = [
        (radius * sin(pi * i / 5), -radius * cos(pi * i / 5)) for i in range(10) for radius in ((1.0, 0.42)[i % 2],)
    ]
    angles = [2 * pi * i / 60 for i in range(60)]
    heart = [(sin(t) ** 3, -(13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t)) / 16) for t in angles]
    arm = 0.36
    cross = [(-arm, -1), (arm, -1), (arm, -arm), (1, -arm), (1, arm), (arm, arm), (arm, 1), (-arm, 1), (-arm, arm)]
    cross += [(-1, arm), (-1, -arm), (-arm, -arm)]
    polygons: dict[str, list[tuple[float, float]]] = {
        "circle": circle,
        "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
        "triangle": [(0, -1), (1, 1), (-1, 1)],
        "star": star,
        "heart": heart,
        "diamond": [(0, -1), (1, 0), (0, 1), (-1, 0)],
        "cross": cross,
    }
    masks = {name: _filled(points) for name, points in polygons.items()}
    masks["ring"] = masks["circle"] & ~_filled([(0.65 * x, 0.65 * y) for x, y in circle], fit=False)
    return masks


def _filled(points: list[tuple[float, float]], fit: bool = True) -> Mask:
    """A polygon as a mask; with `fit` stretched until it fills the mask's box, else in -1..1."""
    corners = np.array(points)
    low, high = (corners.min(0), corners.max(0)) if fit else (np.array([-1, -1]), np.array([1, 1]))
    scaled = (corners - low) / (high - low) * (MASK_PX * 4 - 1)
    image = Image.new("L", (MASK_PX * 4, MASK_PX * 4))
    ImageDraw.Draw(image).polygon([(float(x), float(y)) for x, y in scaled], fill=255)
    return np.asarray(image.resize((MASK_PX, MASK_PX), Image.Resampling.BOX)) > 127


# -- landscapes ------------------------------------------------------------------------------------------------------


def _landscape_caption(pixels: Floats) -> str | None:
    sky, land = np.median(pixels[:12].reshape(-1, 3), axis=0), np.median(pixels[-12:].reshape(-1, 3), axis=0)
    time, place = _nearest(sky, SKIES), _nearest(land, LANDS)
    if (
        _distance(sky, np.array(SKIES[time])) > SCENE_DISTANCE
        or _distance(land, np.array(LANDS[place])) > SCENE_DISTANCE
    ):
        return None
    rows = np.median(pixels, axis=1)
    is_land = _distance(rows, land) < _distance(rows, sky)
    horizon = int(np.argmax(np.cumsum(np.where(is_land, -1, 1))))  # most rows above are sky, most below are land
    if not 40 <= horizon <= 110:
        return None
    things = list(_things(pixels, horizon, sky, land, time, place))
    start = f"{place} {time}"
    if not things:
        return start
    return f"{start} with {', '.join(things[:-1])}{' and ' if len(things) > 1 else ''}{things[-1]}"


def _things(pixels: Floats, horizon: int, sky: Floats, land: Floats, time: str, place: str) -> Iterable[str]:
    """Name what a landscape shows, from patches that are neither sky nor land."""
    from scipy import ndimage

    above = pixels[: horizon - 2]
    other = _distance(above, sky) > FOREGROUND_DISTANCE
    light = MOON if time == "at night" else THINGS["sun"]
    upper = above[:56]
    bright = (_distance(upper, np.array(light)) < 70) & other[:56]
    labels, count = ndimage.label(bright)
    disks = ndimage.sum_labels(bright, labels, range(1, count + 1)) if count else np.zeros(0)
    if len(disks) and 90 <= float(np.max(disks)) <= 900:
        yield "the moon" if time == "at night" else "the sun"
    mountains = (_distance(above, np.array(THINGS["mountains"])) < 45) & other
    if mountains.sum() > 350:
        yield "mountains"
    trees = (_distance(pixels, np.array(THINGS["trees"])) < 45) & (_distance(pixels, land) > 45)
    if place != "sea" and 60 < trees[40:].sum() < 3000:
        yield "trees"
    if place == "sea":
        sails = (_distance(pixels, np.array([245, 245, 245])) < 60) & (_distance(pixels, sky) > FOREGROUND_DISTANCE)
        if 60 < sails[horizon - 40 :].sum() < 1200:
            yield "a sailboat"


# -- helpers ---------------------------------------------------------------------------------------------------------


def _distance(colors: Floats, color: Floats | NDArray[Any]) -> Floats:
    """Measure how far colors [...,3] are from one, 0 to 441."""
    found: Floats = np.sqrt(((colors - color) ** 2).sum(-1))
    return found


def _nearest(color: Floats, names: dict[str, Rgb]) -> str:
    return min(names, key=lambda name: float(_distance(color, np.array(names[name]))))


def _with_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


DESCRIBERS["scenes"] = describe
