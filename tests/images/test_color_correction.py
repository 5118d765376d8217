"""Color correction: the first image's colors, the result's own light."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.images.color_correction import color_target, corrected
from tests.recordings import REFERENCE, cases

IN_LAB = {  # by OpenCV 5.0, in 8 bits
    (0, 0, 0): (0, 128, 128),
    (255, 255, 255): (255, 128, 128),
    (255, 0, 0): (136, 208, 195),
    (0, 255, 0): (224, 42, 211),
    (0, 0, 255): (82, 207, 20),
    (12, 200, 77): (181, 61, 177),
    (3, 1, 9): (2, 128, 126),
    (130, 90, 20): (106, 138, 172),
    (66, 66, 66): (71, 128, 128),
    (250, 240, 13): (237, 112, 218),
}


def noise(seed: int, low: int = 0, high: int = 256) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(low, high, (32, 32, 3), dtype=np.uint8))


def luminosity(image: Image.Image) -> NDArray[np.float64]:
    weighted: NDArray[np.float64] = np.asarray(image, dtype=np.float64) @ np.array([0.3, 0.59, 0.11])
    return weighted


def test_an_image_is_left_by_its_own_colors() -> None:
    image = noise(0, 60, 200)  # 8 bits of L*a*b* are coarse for dark saturated colors
    difference = np.asarray(corrected(image, color_target(image))).astype(int) - np.asarray(image)
    assert np.abs(difference).max() <= 5 and np.abs(difference).mean() < 1


def test_colors_move_to_the_target_and_light_stays() -> None:
    rng = np.random.default_rng(3)
    grey = Image.fromarray(rng.integers(90, 170, (32, 32, 1), dtype=np.uint8).repeat(3, axis=2))
    red = Image.fromarray((rng.integers(90, 170, (32, 32, 1)) * (1.2, 0.7, 0.7)).astype(np.uint8))
    result = corrected(grey, color_target(red))
    means = np.asarray(result).reshape(-1, 3).mean(axis=0)
    assert means[0] > means[1] + 20 and means[0] > means[2] + 20
    assert np.abs(luminosity(result) - luminosity(grey)).max() < 2


def test_colors_in_lab_are_those_of_opencv() -> None:
    pixels = Image.fromarray(np.array([list(IN_LAB)], dtype=np.uint8))
    assert [tuple(pixel) for pixel in color_target(pixels)[0].tolist()] == list(IN_LAB.values())


def test_the_recorded_correction_is_made_again() -> None:
    """The same request was recorded with and without it."""
    images = {case["id"]: REFERENCE / case["images"][0]["file"] for case in cases() if case.get("images")}
    uncorrected = Image.open(images["img2img/sampler-euler"]).convert("RGB")
    target = color_target(Image.open(REFERENCE / "inputs" / "init64.png"))
    recorded = np.asarray(Image.open(images["img2img/color-correction"]).convert("RGB")).astype(int)
    assert np.abs(np.asarray(corrected(uncorrected, target)) - recorded).max() <= 2
