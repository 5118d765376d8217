"""Deformable convolution with modulation (Zhu et al. 2018, arXiv:1811.11168): each place of a kernel looks where its
offset points, and counts as much as its mask says."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DeformableConv(nn.Module):
    """A convolution of stride 1 whose offsets and masks two others compute, in the names of BiRefNet's files."""

    def __init__(self, into: int, out: int, side: int) -> None:
        super().__init__()
        places = side**2
        self.offset_conv = nn.Conv2d(into, 2 * places, side, padding=side // 2)
        self.modulator_conv = nn.Conv2d(into, places, side, padding=side // 2)
        self.regular_conv = nn.Conv2d(into, out, side, padding=side // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        offsets, masks = self.offset_conv(x), 2.0 * self.modulator_conv(x).sigmoid()
        return deformed(x, offsets, masks, self.regular_conv)


def deformed(x: Tensor, offsets: Tensor, masks: Tensor, conv: nn.Conv2d) -> Tensor:
    """[1,C,h,w] by a convolution [D,C,k,k] without a bias: `offsets` [1,2kk,h,w] are in pixels, down and right of each
    place of the kernel, row by row; `masks` [1,kk,h,w]. What lies outside is 0.

    The kernel's places are added up one after the other, each as a 1 x 1 convolution, so that memory holds the values
    of one place instead of all."""
    weight = conv.weight.to(x.dtype)
    side, (height, width) = weight.shape[-1], x.shape[2:]
    rows = torch.arange(height, device=x.device, dtype=torch.float32)[:, None]
    columns = torch.arange(width, device=x.device, dtype=torch.float32)[None]
    exact = x.float()  # as places are: 16 bits would miss them by parts of a pixel
    found = x.new_zeros(1, len(weight), height, width)
    for place in range(side**2):
        down, right = (step - side // 2 for step in divmod(place, side))
        top = rows + down + offsets[0, 2 * place]
        left = columns + right + offsets[0, 2 * place + 1]
        grid = torch.stack([(2 * left + 1) / width - 1, (2 * top + 1) / height - 1], dim=-1)[None]
        seen = F.grid_sample(exact, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        seen = (seen * masks[:, place : place + 1]).to(x.dtype)
        found += F.conv2d(seen, weight[:, :, place // side, place % side, None, None])
    return found
