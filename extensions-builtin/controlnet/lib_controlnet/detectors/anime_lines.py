"""Line drawings of anime pictures: the U-Net of pix2pix (Isola et al. 2017, arXiv:1611.07004) that ControlNet's authors
took over, eight levels deep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.detectors.weights import as_batch, filled
from lib_controlnet.pixels import Pixels, resize_cubic

WIDTHS = (64, 128, 256, 512, 512, 512, 512, 512)
MULTIPLE = 256


class Level(nn.Module):
    """One level and those below it. `model` is a sequence, by whose places files name the layers."""

    def __init__(self, number: int) -> None:
        super().__init__()
        width = WIDTHS[number]
        is_first, is_last = number == 0, number == len(WIDTHS) - 1
        outer = 3 if is_first else WIDTHS[number - 1]
        down = nn.Conv2d(outer, width, 4, stride=2, padding=1)
        inner = width if is_last else 2 * width
        up = nn.ConvTranspose2d(inner, 1 if is_first else outer, 4, stride=2, padding=1)
        below = [] if is_last else [Level(number + 1)]
        if is_first:
            layers: list[nn.Module] = [down, *below, nn.ReLU(), up, nn.Tanh()]
        else:
            norm = [] if is_last else [nn.InstanceNorm2d(width)]
            layers = [nn.LeakyReLU(0.2), down, *norm, *below, nn.ReLU(), up, nn.InstanceNorm2d(outer)]
        self.model = nn.Sequential(*layers)
        self.is_first = is_first

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.model(x)
        return found if self.is_first else torch.cat([x, found], dim=1)


class AnimeLines(nn.Module):
    """An image [1,3,H,W] in -1..1, with sides that are multiples of 256, to a drawing [1,1,H,W] in -1..1."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Level(0)

    def forward(self, image: Tensor) -> Tensor:
        found: Tensor = self.model(image)
        return found


@torch.inference_mode()
def drawing(image: Pixels, path: Path) -> Pixels:
    """White lines on black [H,W] of [H,W,3]."""
    height, width = image.shape[:2]
    large = resize_cubic(image, *(-(-side // MULTIPLE) * MULTIPLE for side in (width, height)))
    drawn = filled(AnimeLines(), path)(as_batch(large) / 127.5 - 1.0) * 127.5 + 127.5
    sized = F.interpolate(drawn, size=(height, width), mode="bicubic", align_corners=False)
    inverse: Pixels = 255 - sized[0, 0].clamp(0, 255).numpy().astype(np.uint8)
    return inverse
