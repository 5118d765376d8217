"""Masks of inpainting: what is painted, what is kept, and that kept pixels come back as they were."""

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from modules.images.masks import (
    Box,
    blur_mask,
    fill_masked,
    flattened,
    grown_to_aspect,
    masked_area,
    overlay_of,
    paste_back,
    to_mask,
)


def noise(width: int = 48, height: int = 32, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def square(width: int = 48, height: int = 32, box: tuple[int, int, int, int] = (10, 8, 20, 18)) -> Image.Image:
    mask = Image.new("L", (width, height))
    mask.paste(255, box)
    return mask


def test_a_mask_with_transparency_is_read_from_it() -> None:
    image = Image.new("RGBA", (2, 1), (255, 255, 255, 0))
    image.putpixel((1, 0), (0, 0, 0, 200))
    assert list(to_mask(image).tobytes()) == [0, 255]
    assert list(to_mask(image, is_binary=False).tobytes()) == [0, 200]


def test_an_opaque_mask_is_read_by_its_luminance() -> None:
    image = Image.new("RGBA", (2, 1), (255, 255, 255, 255))
    image.putpixel((1, 0), (0, 0, 0, 255))
    assert list(to_mask(image).tobytes()) == [255, 0]


@pytest.mark.parametrize("sigma", [1, 4, 7])
def test_blur_is_gaussian(sigma: float) -> None:
    ours = np.asarray(blur_mask(square(), sigma, sigma), dtype=float)
    exact = gaussian_filter(np.asarray(square(), dtype=float), sigma, mode="mirror")
    assert np.abs(ours - exact).max() < 6  # the kernel ends at 2.5 deviations, and levels are whole


def test_blur_in_one_direction_leaves_the_other() -> None:
    blurred = np.asarray(blur_mask(square(), 0, 3))
    assert set(np.flatnonzero(blurred.max(axis=0))) == set(range(10, 20))
    assert np.count_nonzero(blurred.max(axis=1)) > 10


def test_the_area_is_padded_inside_the_image() -> None:
    assert masked_area(square(), 0) == Box(10, 8, 20, 18)
    assert masked_area(square(), 9) == Box(1, 0, 29, 27)
    assert masked_area(Image.new("L", (8, 8)), 4) is None


@pytest.mark.parametrize(
    ("area", "grown"),
    [
        (Box(10, 8, 20, 18), Box(10, 8, 20, 18)),
        (Box(10, 8, 30, 18), Box(10, 3, 30, 23)),
        (Box(0, 8, 4, 18), Box(0, 8, 10, 18)),
        (Box(10, 22, 30, 32), Box(10, 12, 30, 32)),
        (Box(0, 10, 48, 20), Box(0, 0, 48, 32)),
    ],
)
def test_an_area_grows_to_the_aspect_inside_the_image(area: Box, grown: Box) -> None:
    assert grown_to_aspect(area, (64, 64), (48, 32)) == grown


def test_kept_pixels_come_back_to_the_bit() -> None:
    image, mask = noise(), square()
    back = np.asarray(paste_back(noise(seed=1), overlay_of(image, mask)))
    painted = np.asarray(mask) > 0
    assert np.array_equal(back[~painted], np.asarray(image)[~painted])
    assert np.array_equal(back[painted], np.asarray(noise(seed=1))[painted])


def test_an_area_is_pasted_where_it_was() -> None:
    image, mask = noise(), square()
    back = np.asarray(paste_back(Image.new("RGB", (64, 64), "red"), overlay_of(image, mask), Box(10, 8, 20, 18)))
    painted = np.asarray(mask) > 0
    assert np.array_equal(back[~painted], np.asarray(image)[~painted])
    assert (back[painted] == (255, 0, 0)).all()


def test_filling_takes_the_colors_around() -> None:
    image = Image.new("RGB", (48, 32), (200, 40, 40))
    image.paste((0, 0, 255), (10, 8, 20, 18))
    filled = np.asarray(fill_masked(image, square())).astype(int)
    assert np.abs(filled[13, 15] - (200, 40, 40)).max() <= 3


def test_transparent_parts_get_the_background() -> None:
    image = Image.new("RGBA", (1, 1), (255, 0, 0, 0))
    assert flattened(image, "#00ff00").getpixel((0, 0)) == (0, 255, 0)
    assert flattened(Image.new("L", (1, 1), 7), "#00ff00").getpixel((0, 0)) == (7, 7, 7)
