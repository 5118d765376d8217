"""Depth by LeReS (Yin et al. 2021, arXiv:2012.09365): a ResNeXt-101 (32 x 8d) and a decoder that joins its levels."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.detectors.weights import as_batch, filled, renamed
from lib_controlnet.pixels import Pixels

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Taken from values of 0 to 255, as the network was trained."""
STEM, DEPTHS, GROUPS = 64, (3, 4, 23, 3), 32
JOINED = (512, 256, 256, 256)
"""Widths of the decoder, the coarsest first."""
NAMES = (
    (re.compile(r"^.*encoder_modules\.encoder\."), "encoder."),
    (re.compile(r"^.*decoder_modules\."), "decoder."),
)


class Bottleneck(nn.Module):
    """A block of ResNeXt (Xie et al. 2017, arXiv:1611.05431)."""

    def __init__(self, into: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(into, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, groups=GROUPS, bias=False)
        self.bn2, self.bn3 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width, 1, bias=False)
        beside = (nn.Conv2d(into, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))
        self.downsample = nn.Sequential(*beside) if into != width else None

    def forward(self, x: Tensor) -> Tensor:
        found = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(found)) + (x if self.downsample is None else self.downsample(x)))


class Encoder(nn.Module):
    """Features of 1/4 to 1/32 of the sides; the inner convolutions are as wide as the outer ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, STEM, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(STEM)
        into = STEM
        for level, depth in enumerate(DEPTHS):
            width = 4 * STEM * 2**level
            strides = [1 + (level > 0), *[1] * (depth - 1)]
            blocks = [Bottleneck(into if place == 0 else width, width, stride) for place, stride in enumerate(strides)]
            setattr(self, f"layer{level + 1}", nn.Sequential(*blocks))
            into = width

    def forward(self, image: Tensor) -> list[Tensor]:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(image))), 3, stride=2, padding=1)
        return [x := getattr(self, f"layer{level}")(x) for level in range(1, len(DEPTHS) + 1)]


class Transferred(nn.Module):
    """A level in another width. What goes around the inner layers has passed their first ReLU, too."""

    def __init__(self, into: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, width, 3, padding=1)
        convs = [nn.Conv2d(width, width, 3, padding=1) for _ in range(2)]
        self.conv_branch = nn.Sequential(nn.ReLU(), convs[0], nn.BatchNorm2d(width), nn.ReLU(), convs[1])

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        return F.relu(x + self.conv_branch(x))


class Joined(nn.Module):
    """A level and the one below it, twice as large."""

    def __init__(self, into: int, width: int, out: int) -> None:
        super().__init__()
        self.ftb1, self.ftb2 = Transferred(into, width), Transferred(width, out)

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        return doubled(self.ftb2(self.ftb1(fine) + coarse))


class Decoder(nn.Module):
    """From the levels to depth."""

    def __init__(self) -> None:
        super().__init__()
        widths = [4 * STEM * 2**level for level in range(len(DEPTHS))]
        self.conv = Transferred(widths[3], JOINED[0])
        self.conv1 = nn.Conv2d(JOINED[0], JOINED[1], 3, padding=1)
        for level, width in zip((2, 1, 0), JOINED[1:], strict=True):
            setattr(self, f"ffm{level}", Joined(widths[level], width, width))
        half = JOINED[3] // 2
        convs = (nn.Conv2d(JOINED[3], half, 3, padding=1), nn.Conv2d(half, 1, 3, padding=1))
        self.outconv = nn.ModuleDict({"adapt_conv": nn.Sequential(convs[0], nn.BatchNorm2d(half), nn.ReLU(), convs[1])})

    def forward(self, levels: list[Tensor]) -> Tensor:
        x = doubled(self.conv1(self.conv(levels[3])))
        for level in (2, 1, 0):
            x = getattr(self, f"ffm{level}")(levels[level], x)
        return doubled(self.outconv["adapt_conv"](x))


class DepthNet(nn.Module):
    """The whole network."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()

    def forward(self, image: Tensor) -> Tensor:
        """A normed image [1,3,H,W], blue first, sides multiples of 32, to depth [1,1,H,W]; far is large."""
        found: Tensor = self.decoder(self.encoder(image))
        return found


def doubled(x: Tensor) -> Tensor:
    """Values of twice the height and width."""
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)


@torch.inference_mode()
def depth_map(image: Pixels, path: Path, near: float, far: float) -> Pixels:
    """Depth [H,W] of [H,W,3], near is white; black is what is nearer than `near` percent of the range, and what is
    farther than all but `far` percent."""
    x = as_batch(image[:, :, ::-1])
    x = (x - x.new_tensor(MEAN).reshape(1, 3, 1, 1)) / x.new_tensor(STD).reshape(1, 3, 1, 1)
    depth = filled(DepthNet(), path, lambda tensors: renamed(tensors, NAMES, ()))(x)[0, 0]
    above = depth - depth.min()
    levels = np.rint((above / above.max().clamp_min(1e-12)).numpy() * 255).astype(np.uint8)
    levels = np.where(levels > near * 2.55, levels, 0) if near else levels
    found: Pixels = (255 - levels).astype(np.uint8)
    return np.where(found > far * 2.55, found, 0).astype(np.uint8) if far else found
