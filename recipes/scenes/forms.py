"""Forms as masks: of an ideal shape and of what an image shows, how far they overlap, and how soft the edge is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipes.scenes.images import draw
from recipes.scenes.layout import SINGLE_RADII, SIZE_PX, Shape, ShapesScene

BORDER_PX = 6
CORNER_PX = 8
RADIUS_STEP_PX = 0.5
EDGE_FROM, EDGE_TO = 0.2, 0.8  # of the way from the background's color to the shape's

Mask = NDArray[np.bool_]
Pixels = NDArray[np.uint8]  # [height, width, 3]


@dataclass(frozen=True)
class Fit:
    """The ideal shape that overlaps a form most, and by how much (intersection over union)."""

    shape: Shape
    overlap: float


def border_of(image: Pixels) -> NDArray[np.float64]:
    """The pixels [n, 3] of the outer 6 rows and columns."""
    border = np.ones(image.shape[:2], dtype=bool)
    border[BORDER_PX:-BORDER_PX, BORDER_PX:-BORDER_PX] = False
    return image[border].astype(np.float64)


def drawn_form(shape: Shape) -> Mask:
    """Where a shape is, [128, 128]."""
    black = replace(shape, color="black")
    found: Mask = np.asarray(draw(ShapesScene(background="white", shapes=(black,))).convert("L")) < 128
    return found


def form_in(image: Pixels) -> Mask:
    """What stands out of the background, [height, width]: nearer to the middle color of what is far from it."""
    values = image.astype(np.float64)
    background = np.median(border_of(image), axis=0)
    distance = np.linalg.norm(values - background, axis=2)
    far: Mask = distance >= max(30.0, 0.6 * float(np.percentile(distance, 98)))
    if not far.any():
        return far
    color = np.median(values[far], axis=0)
    found: Mask = np.linalg.norm(values - color, axis=2) < distance
    return found


def overlap(first: Mask, second: Mask) -> float:
    """Intersection over union."""
    union = int((first | second).sum())
    return int((first & second).sum()) / union if union else 0.0


def best_fit(form: Mask, kind: str, size: str) -> Fit:
    """The shape of that kind and size that overlaps `form` [128, 128] most, wherever it lies wholly in the image.

    Places are tried to half a pixel, radii to half a pixel within what the size's word means.
    """
    spectrum, area = np.fft.rfft2(form), int(form.sum())
    best = Fit(Shape(kind=kind, color="black", size=size, x=SIZE_PX / 2, y=SIZE_PX / 2, radius=0), 0.0)
    for shape, template, own in _templates(kind, size):
        common = np.fft.irfft2(spectrum * template, form.shape)
        ratio = common / (area + own - common)
        reach = int(SIZE_PX / 2 - shape.radius)
        shifts = np.arange(-reach, reach)
        inside = ratio[np.ix_(shifts, shifts)]
        row, column = np.unravel_index(int(inside.argmax()), inside.shape)
        if inside[row, column] > best.overlap:
            moved = replace(shape, x=shape.x + float(shifts[column]), y=shape.y + float(shifts[row]))
            best = Fit(moved, float(inside[row, column]))
    return best


def best_overlap(parts: Sequence[Mask], templates: Iterable[Sequence[Mask]]) -> float:
    """The largest overlap of an image's parts, one mask each, with those of a template, moved together to anywhere."""
    spectra, area = [np.fft.rfft2(part) for part in parts], sum(int(part.sum()) for part in parts)
    best = 0.0
    for template in templates:
        products = (spectrum * np.conj(np.fft.rfft2(mask)) for spectrum, mask in zip(spectra, template, strict=True))
        common = np.fft.irfft2(sum(products), parts[0].shape)
        best = max(best, float((common / (area + sum(int(mask.sum()) for mask in template) - common)).max()))
    return best


@cache
def _templates(kind: str, size: str) -> list[tuple[Shape, NDArray[np.complex128], int]]:
    """Ideal shapes near the middle with the conjugate spectrum and the area of their forms."""
    low, high = SINGLE_RADII[size]
    found = []
    for radius in np.arange(low, high + RADIUS_STEP_PX / 2, RADIUS_STEP_PX):
        for x, y in ((64.0, 64.0), (64.5, 64.0), (64.0, 64.5), (64.5, 64.5)):
            shape = Shape(kind=kind, color="black", size=size, x=x, y=y, radius=float(radius))
            form = drawn_form(shape)
            found.append((shape, np.conj(np.fft.rfft2(form)), int(form.sum())))
    return found


def edge_px(image: Pixels, form: Mask) -> float:
    """How wide the edge of `form` is, in pixels: those on the way between two colors, by the length of the outline."""
    if not form.any() or form.all():
        return float(SIZE_PX)
    values = image.astype(np.float64)
    background, color = np.median(values[~form], axis=0), np.median(values[form], axis=0)
    way = color - background
    along = (values - background) @ way / max(1.0, float(way @ way))
    between = int(((along > EDGE_FROM) & (along < EDGE_TO)).sum())
    # Crossings between rows and columns count a slanted outline up to sqrt(2) times; it is the same for both images.
    length = sum(int(np.diff(form, axis=axis).sum()) for axis in (0, 1))
    return between / length


def corner_levels(images: Iterable[Pixels]) -> dict[str, float]:
    """How far the pixels of each corner of 8 lie from their background's color, mean over images and channels of 255
    levels."""
    cuts: dict[str, Any] = {
        "upper_left": np.s_[:CORNER_PX, :CORNER_PX],
        "upper_right": np.s_[:CORNER_PX, -CORNER_PX:],
        "lower_left": np.s_[-CORNER_PX:, :CORNER_PX],
        "lower_right": np.s_[-CORNER_PX:, -CORNER_PX:],
    }
    found: dict[str, list[float]] = {name: [] for name in cuts}
    for image in images:
        background = np.median(border_of(image), axis=0)
        for name, cut in cuts.items():
            found[name].append(float(np.abs(image[cut] - background).mean()))
    return {name: round(float(np.mean(values)), 2) for name, values in found.items()}
