"""Soft edges by TEED (Soria et al. 2023, arXiv:2308.06468), a network of 58,000 weights."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.detectors.weights import as_batch, filled
from lib_controlnet.pixels import Pixels

WIDTHS = (16, 32, 48)
WIDE = 24


class Smish(nn.Module):
    """Wang et al. 2022 (doi:10.3390/electronics11040540)."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.log1p(x.sigmoid()).tanh()


class Pair(nn.Module):
    """Two convolutions; `reach` is what surrounds the image before the first, which the second takes off again."""

    def __init__(self, into: int, out: int, stride: int = 1, pads: tuple[int, int] = (1, 1)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride=stride, padding=pads[0])
        self.conv2 = nn.Conv2d(out, out, 3, padding=pads[1])

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv2(Smish()(self.conv1(x)))
        return found


class Side(nn.Module):
    """A convolution of single pixels."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(x)
        return found


class Enlarged(nn.Module):
    """A level's edges, twice as large or four times."""

    def __init__(self, into: int, doublings: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for left in range(doublings, 0, -1):
            out = 1 if left == 1 else WIDTHS[0]
            grown = nn.ConvTranspose2d(out, out, 2**doublings, stride=2, padding=doublings - 1)
            layers += [nn.Conv2d(into, out, 1), Smish(), grown]
            into = out
        self.features = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.features(x)
        return found


class Fused(nn.Module):
    """The edges of three levels as one."""

    def __init__(self) -> None:
        super().__init__()
        self.DWconv1 = nn.Conv2d(3, WIDE, 3, padding=1, groups=3)
        self.DWconv2 = nn.Conv2d(WIDE, WIDE, 3, padding=1, groups=WIDE)

    def forward(self, x: Tensor) -> Tensor:
        x = self.DWconv1(Smish()(x))
        found: Tensor = Smish()((x + self.DWconv2(x)).sum(1, keepdim=True))
        return found


class TeedNet(nn.Module):
    """The whole network, in its authors' names."""

    def __init__(self) -> None:
        super().__init__()
        first, second, third = WIDTHS
        self.block_1, self.block_2 = Pair(3, first, stride=2), Pair(first, second)
        self.dblock_3 = nn.ModuleDict({"denselayer1": Pair(second, third, pads=(2, 0))})
        self.side_1, self.pre_dense_3 = Side(first, second, 2), Side(second, third, 1)
        self.up_block_1, self.up_block_2, self.up_block_3 = Enlarged(first, 1), Enlarged(second, 1), Enlarged(third, 2)
        self.block_cat = Fused()

    def forward(self, image: Tensor) -> Tensor:
        """An image [1,3,H,W] in 0..255, sides multiples of 4, to edges [1,1,H,W] in 0..1."""
        fine = Smish()(self.block_1(image))
        middle = self.block_2(fine)
        small = F.max_pool2d(middle, 3, stride=2, padding=1)
        deep = self.dblock_3["denselayer1"](Smish()(small + self.side_1(fine)))
        coarse = 0.5 * (deep + self.pre_dense_3(small))
        edges = torch.cat([self.up_block_1(fine), self.up_block_2(middle), self.up_block_3(coarse)], dim=1)
        return torch.cat([edges, self.block_cat(edges)], dim=1).mean(1, keepdim=True).sigmoid()


@torch.inference_mode()
def edges_of(image: Pixels, path: Path) -> Tensor:
    """Edges [1,1,H,W] in 0..1 of [H,W,3]."""
    edges: Tensor = filled(TeedNet(), path)(as_batch(image))
    return edges
