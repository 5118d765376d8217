"""Forms: the ideal shape is found again where it is, edges have their width, corners their distance."""

import numpy as np
import pytest
from PIL import Image, ImageFilter

from recipes.scenes.forms import best_fit, best_overlap, corner_levels, drawn_form, edge_px, form_in, overlap
from recipes.scenes.images import draw
from recipes.scenes.layout import SHAPES, Shape, ShapesScene

BACKGROUND = (40, 80, 220)


def _image(shape: Shape) -> Image.Image:
    return draw(ShapesScene(background="blue", shapes=(shape,)))


@pytest.mark.parametrize("kind", SHAPES)
def test_the_shape_that_was_drawn_fits_best(kind: str) -> None:
    shape = Shape(kind=kind, color="red", size="", x=58, y=71.5, radius=32.5)
    form = form_in(np.asarray(_image(shape)))
    fit = best_fit(form, kind, "")
    assert fit.overlap > 0.98
    assert (fit.shape.x, fit.shape.y, fit.shape.radius) == pytest.approx((58, 71.5, 32.5), abs=0.5)
    others = [best_fit(form, other, "").overlap for other in SHAPES if other != kind]
    assert max(others) < 0.9


def test_a_shape_of_another_size_fits_less() -> None:
    form = drawn_form(Shape(kind="circle", color="red", size="small", x=64, y=64, radius=21))
    assert best_fit(form, "circle", "small").overlap > 0.98
    assert best_fit(form, "circle", "large").overlap == pytest.approx((21 / 42.5) ** 2, abs=0.02)


def test_an_empty_form_fits_nothing() -> None:
    assert best_fit(np.zeros((128, 128), dtype=bool), "star", "").overlap == 0


def test_parts_are_moved_together() -> None:
    left, right = np.zeros((128, 128), dtype=bool), np.zeros((128, 128), dtype=bool)
    left[60:70, 50:60], right[60:70, 60:70] = True, True
    moved = [np.roll(mask, (12, -20), axis=(0, 1)) for mask in (left, right)]
    assert best_overlap(moved, [[left, right]]) == pytest.approx(1.0)
    apart = [moved[0], np.roll(moved[1], 40, axis=1)]
    assert best_overlap(apart, [[left, right]]) == pytest.approx(1 / 3)


def test_a_blurred_edge_is_wider() -> None:
    sharp = _image(Shape(kind="square", color="yellow", size="large", x=64, y=64, radius=44))
    form = form_in(np.asarray(sharp))
    blurred = [np.asarray(sharp.filter(ImageFilter.GaussianBlur(radius))) for radius in (1, 3)]
    widths = [edge_px(image, form) for image in (np.asarray(sharp), *blurred)]
    assert widths[0] <= 1
    # The way from 20 % to 80 % of a Gaussian edge is 1.68 of its deviation.
    assert widths[2] == pytest.approx(1.68 * 3, abs=1.2) and widths[0] < widths[1] < widths[2]


def test_corners_are_measured_apart() -> None:
    image = np.full((128, 128, 3), BACKGROUND, dtype=np.uint8)
    image[-8:, :8] += 12
    image[:4, :8] -= 20
    assert corner_levels([image]) == {"upper_left": 10, "upper_right": 0, "lower_left": 12, "lower_right": 0}


def test_overlap_of_nothing_is_none() -> None:
    nothing = np.zeros((4, 4), dtype=bool)
    assert overlap(nothing, nothing) == 0 and overlap(~nothing, ~nothing) == 1
