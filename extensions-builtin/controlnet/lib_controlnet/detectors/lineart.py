"""Line drawings of photos (Chan, Durand and Isola 2022, arXiv:2203.12691): the generator of their networks."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from lib_controlnet.detectors.weights import as_batch, as_bytes, filled
from lib_controlnet.pixels import Pixels

WIDTH, BLOCKS = 64, 3


class Residual(nn.Module):
    """Two convolutions, around which the input goes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_block = nn.Sequential(
            *(nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width), nn.ReLU()),
            *(nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.conv_block(x)
        return found


class Generator(nn.Module):
    """Down to a quarter of the size, residual blocks, and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.model0 = nn.Sequential(nn.ReflectionPad2d(3), nn.Conv2d(3, WIDTH, 7), nn.InstanceNorm2d(WIDTH), nn.ReLU())
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for width in (WIDTH, 2 * WIDTH):
            down += [nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.InstanceNorm2d(2 * width), nn.ReLU()]
        for width in (4 * WIDTH, 2 * WIDTH):
            up += [
                nn.ConvTranspose2d(width, width // 2, 3, stride=2, padding=1, output_padding=1),
                nn.InstanceNorm2d(width // 2),
                nn.ReLU(),
            ]
        self.model1 = nn.Sequential(*down)
        self.model2 = nn.Sequential(*(Residual(4 * WIDTH) for _ in range(BLOCKS)))
        self.model3 = nn.Sequential(*up)
        self.model4 = nn.Sequential(nn.ReflectionPad2d(3), nn.Conv2d(WIDTH, 1, 7), nn.Sigmoid())

    def forward(self, image: Tensor) -> Tensor:
        """An image [1,3,H,W] in 0..1 to a drawing [1,1,H,W], black on white."""
        found: Tensor = self.model4(self.model3(self.model2(self.model1(self.model0(image)))))
        return found


@torch.inference_mode()
def drawing(image: Pixels, path: Path) -> Pixels:
    """White lines on black [H,W] of [H,W,3]."""
    drawn = filled(Generator(), path)(as_batch(image) / 255.0)
    inverse: Pixels = 255 - as_bytes(drawn)
    return inverse
