"""Grids."""

import pytest
from PIL import Image

from modules.images.grid import fits_grid, grid_rows, image_grid
from modules.settings.values import Settings


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2), (7, 3), (9, 3), (12, 3)])
def test_automatic_grids_are_about_square(count: int, rows: int) -> None:
    assert grid_rows(count, Settings()) == rows


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (5, 1), (6, 2), (7, 1), (8, 2), (9, 3), (12, 3)])
def test_grids_without_empty_spots(count: int, rows: int) -> None:
    assert grid_rows(count, Settings().changed(grid_prevent_empty_spots=True)) == rows


def test_rows_can_be_set() -> None:
    assert grid_rows(8, Settings().changed(n_rows=4)) == 4
    assert grid_rows(2, Settings().changed(n_rows=4)) == 2
    assert grid_rows(8, Settings().changed(n_rows=0), batch_size=2) == 2
    assert grid_rows(0, Settings().changed(n_rows=0), batch_size=0) == 1


def test_images_stand_row_by_row() -> None:
    colors = [(1, 0, 0), (2, 0, 0), (3, 0, 0)]
    grid = image_grid([Image.new("RGB", (4, 2), color) for color in colors], rows=2)
    assert grid.size == (8, 4)
    assert [grid.getpixel(spot) for spot in ((0, 0), (7, 1), (0, 2), (7, 3))] == [*colors, (0, 0, 0)]


def test_smaller_images_are_centred() -> None:
    grid = image_grid([Image.new("RGB", (4, 4), "white"), Image.new("RGB", (2, 2), "red")], rows=1)
    assert grid.getpixel((4, 0)) == (0, 0, 0)
    assert grid.getpixel((5, 1)) == (255, 0, 0)
    assert grid.getpixel((6, 2)) == (255, 0, 0)
    assert grid.getpixel((7, 3)) == (0, 0, 0)


def test_too_large_grids_are_seen() -> None:
    images = [Image.new("L", (1000, 1000))] * 3
    assert fits_grid(images, Settings().changed(img_max_size_mp=3))
    assert not fits_grid(images, Settings().changed(img_max_size_mp=2))
