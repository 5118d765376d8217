"""U-2-Net (Qin et al. 2020, arXiv:2005.09007) and IS-Net (Qin et al. 2022, arXiv:2203.03041), of which RMBG-1.4 is one:
U-shaped networks whose every block is a U itself. Layers are named as in the authors' files."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shapes = Mapping[str, tuple[int, ...]]
BLOCKS = {"stage1": 7, "stage2": 6, "stage3": 5, "stage4": 4, "stage5": 0, "stage6": 0}
BLOCKS |= {"stage5d": 0, "stage4d": 4, "stage3d": 5, "stage2d": 6, "stage1d": 7}
"""The height of each block's U; 0: one of four layers whose reach grows by dilation instead."""
LEVELS, FLAT_HEIGHT = 6, 4
FIRST, STEM = "stage1.rebnconvin.conv_s1.weight", "conv_in.weight"


class ConvNorm(nn.Module):
    """Convolution, norm and ReLU."""

    def __init__(self, into: int, out: int, reach: int) -> None:
        super().__init__()
        self.conv_s1 = nn.Conv2d(into, out, 3, padding=reach, dilation=reach)
        self.bn_s1 = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn_s1(self.conv_s1(x)))


class UBlock(nn.Module):
    """A U of a height, around which its input goes; `height` 0: the one with dilations, in one size."""

    def __init__(self, into: int, middle: int, out: int, height: int) -> None:
        super().__init__()
        self.is_flat, self.height = height == 0, height or FLAT_HEIGHT
        self.rebnconvin = ConvNorm(into, out, 1)
        for level in range(1, self.height + 1):
            reach = 2 ** (level - 1) if self.is_flat else 1 + (level == self.height)
            setattr(self, f"rebnconv{level}", ConvNorm(out if level == 1 else middle, middle, reach))
        for level in range(self.height - 1, 0, -1):
            reach = 2 ** (level - 1) if self.is_flat else 1
            setattr(self, f"rebnconv{level}d", ConvNorm(2 * middle, out if level == 1 else middle, reach))

    def forward(self, x: Tensor) -> Tensor:
        whole = x = self.rebnconvin(x)
        levels = []
        for level in range(1, self.height + 1):
            if 1 < level < self.height and not self.is_flat:
                x = halved(x)
            x = getattr(self, f"rebnconv{level}")(x)
            levels.append(x)
        levels.pop()
        for level in range(self.height - 1, 0, -1):
            beside = levels.pop()
            x = getattr(self, f"rebnconv{level}d")(torch.cat([in_size_of(beside, x), beside], dim=1))
        found: Tensor = x + whole
        return found


class NestedU(nn.Module):
    """The whole network; widths from the tensors of a file."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        self.is_isnet = STEM in shapes
        if self.is_isnet:
            self.conv_in = nn.Conv2d(shapes[STEM][1], shapes[STEM][0], 3, stride=2, padding=1)
        for name, height in BLOCKS.items():
            out, into = shapes[f"{name}.rebnconvin.conv_s1.weight"][:2]
            setattr(self, name, UBlock(into, shapes[f"{name}.rebnconv1.conv_s1.weight"][0], out, height))
        for level in range(1, LEVELS + 1):
            setattr(self, f"side{level}", nn.Conv2d(shapes[f"side{level}.weight"][1], 1, 3, padding=1))
        if not self.is_isnet:
            self.outconv = nn.Conv2d(LEVELS, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        """A normed image [1,3,H,W] to how likely each pixel is of the foreground [1,1,H,W], before a sigmoid."""
        x = self.conv_in(image) if self.is_isnet else image
        size, levels = x.shape[2:], []
        for level in range(1, LEVELS + 1):
            x = getattr(self, f"stage{level}")(x if level == 1 else halved(x))
            levels.append(x)
        x = levels.pop()
        upward = [x]  # the finest first
        for level in range(LEVELS - 1, 0, -1):
            beside = levels.pop()
            x = getattr(self, f"stage{level}d")(torch.cat([in_size_of(beside, x), beside], dim=1))
            upward.insert(0, x)
        used = upward[:1] if self.is_isnet else upward
        sides = [resized(getattr(self, f"side{level}")(x), size) for level, x in enumerate(used, 1)]
        found: Tensor = sides[0] if self.is_isnet else self.outconv(torch.cat(sides, dim=1))
        return resized(found, image.shape[2:])


def halved(x: Tensor) -> Tensor:
    """The largest of each 2 x 2 values; odd sides are rounded up."""
    return F.max_pool2d(x, 2, stride=2, ceil_mode=True)


def resized(x: Tensor, size: torch.Size) -> Tensor:
    """Values of another height and width."""
    return x if x.shape[2:] == size else F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def in_size_of(other: Tensor, x: Tensor) -> Tensor:
    """`x` in the height and width of `other`."""
    return resized(x, other.shape[2:])
