"""Tiles: they cover everything, fade without a seam, and one tile alone is the network itself."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from modules.upscalers.tiles import run_in_tiles
from modules.upscalers.upscaler_types import Tiling

CPU = torch.device("cpu")


class Nearest:
    """Each pixel becomes a square: what any correct tiling of it gives is known."""

    scale = 3

    def __call__(self, image: Tensor) -> Tensor:
        return F.interpolate(image, scale_factor=self.scale, mode="nearest")


class Blur(Nearest):
    """Looks at its neighbours, as real networks do, so that tiles differ at their edges."""

    def __call__(self, image: Tensor) -> Tensor:
        return super().__call__(F.avg_pool2d(image, 5, stride=1, padding=2, count_include_pad=False))


def image(width: int = 61, height: int = 45) -> Image.Image:
    rows = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(rows)


def run(model: Any, image: Image.Image, size: int, overlap: int) -> tuple[np.ndarray[Any, Any], list[int]]:
    counts: list[int] = []
    result = run_in_tiles(model, image, Tiling(size, overlap), CPU, lambda index, count: counts.append(count))
    return np.asarray(result).astype(int), counts


@pytest.mark.parametrize(("size", "overlap"), [(16, 0), (16, 8), (32, 8), (48, 4), (61, 8), (16, 48), (512, 8), (0, 8)])
def test_an_adapter_without_neighbours_does_not_notice_tiles(size: int, overlap: int) -> None:
    whole = image()
    tiled, counts = run(Nearest(), whole, size, overlap)
    expected = np.asarray(whole).astype(int).repeat(3, axis=0).repeat(3, axis=1)
    assert np.abs(tiled - expected).max() <= 1  # one level: eight bits to floats and back
    assert len(counts) == counts[0]


def test_large_tiles_are_one() -> None:
    assert run(Nearest(), image(), 64, 8)[1] == [1]
    assert run(Nearest(), image(), 48, 8)[1] == [2, 2]


def test_a_smooth_image_has_no_seams() -> None:
    ramp = np.linspace(0, 255, 64, dtype=np.uint8)
    image = Image.fromarray(np.stack(np.broadcast_arrays(ramp[None, :], ramp[:, None], ramp[None, ::-1]), axis=2))
    whole, _ = run(Blur(), image, 0, 8)
    tiled, counts = run(Blur(), image, 32, 8)
    assert counts[0] == 9
    assert np.abs(tiled - whole).max() <= 8
    assert np.abs(np.diff(tiled[:, :, 0], axis=1)).max() <= np.abs(np.diff(whole[:, :, 0], axis=1)).max() + 4


def test_the_adapter_sees_blue_first() -> None:
    class FirstPlane(Nearest):
        def __call__(self, image: Tensor) -> Tensor:
            return super().__call__(image * torch.tensor([1.0, 0.0, 0.0])[:, None, None])

    result, _ = run(FirstPlane(), Image.new("RGB", (4, 4), (10, 20, 30)), 0, 0)
    assert result[0, 0, 0] == result[0, 0, 1] == 0 and result[0, 0, 2] in (29, 30)
