"""Soft edges: HED (Xie and Tu 2015, arXiv:1504.06375) in the form that ControlNet's authors trained, and PiDiNet (Su et
al. 2021, arXiv:2108.07009) with its pixel differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.detectors.weights import as_batch, as_bytes, filled
from lib_controlnet.pixels import Pixels, blurred

SAFE_STEPS = 2
HED_WIDTHS = ((3, 64, 2), (64, 128, 2), (128, 256, 3), (256, 512, 3), (512, 512, 3))
PIDI_WIDTH, PIDI_REDUCED = 60, 24
DIFFERENCES = ("central", "angular", "radial", "plain")
AROUND = (3, 0, 1, 6, 4, 2, 7, 8, 5)
"""The next place of a 3 x 3 kernel along the circle around its middle."""
OUTER, INNER = (0, 2, 4, 10, 14, 20, 22, 24), (6, 7, 8, 11, 13, 16, 17, 18)
"""Of a 5 x 5 kernel the places at the ends of eight rays, and those halfway."""
SCRIBBLE_THRESHOLD, SCRIBBLE_SIGMA, SCRIBBLE_LEVEL = 127, 3.0, 4


class HedBlock(nn.Module):
    """Convolutions of one level, and what it says of edges."""

    def __init__(self, into: int, width: int, depth: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            *(nn.Conv2d(into if place == 0 else width, width, 3, padding=1) for place in range(depth))
        )
        self.projection = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.convs:
            x = F.relu(layer(x))
        return x, self.projection(x)


class Hed(nn.Module):
    """Five levels, each half the size of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.zeros(1, 3, 1, 1))
        for number, sizes in enumerate(HED_WIDTHS, 1):
            setattr(self, f"block{number}", HedBlock(*sizes))

    def forward(self, image: Tensor) -> Tensor:
        """An image [1,3,H,W] in 0..255 to edges [1,1,H,W] in 0..1."""
        x, found = image - self.norm, []
        for number in range(1, len(HED_WIDTHS) + 1):
            if number > 1:
                x = F.max_pool2d(x, 2)
            x, edges = getattr(self, f"block{number}")(x)
            found.append(F.interpolate(edges, size=image.shape[2:], mode="bilinear", align_corners=False))
        return torch.stack(found).mean(0).sigmoid()


class DifferenceConv(nn.Module):
    """A convolution over differences of pixels, of one kind."""

    def __init__(self, kind: str, into: int, out: int, groups: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(out, into // groups, 3, 3))
        self.kind, self.groups = kind, groups

    def kernel(self) -> Tensor:
        """The weights of the plain convolution that computes the same."""
        weight = self.weight
        flat = weight.flatten(2)
        if self.kind == "central":
            middle = torch.zeros_like(flat)
            middle[:, :, 4] = flat.sum(2)
            return (flat - middle).reshape(weight.shape)
        if self.kind == "angular":
            return (flat - flat[:, :, list(AROUND)]).reshape(weight.shape)
        if self.kind == "radial":
            wide = flat.new_zeros(*flat.shape[:2], 25)
            wide[:, :, list(OUTER)], wide[:, :, list(INNER)] = flat[:, :, 1:], -flat[:, :, 1:]
            return wide.reshape(*flat.shape[:2], 5, 5)
        return weight

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.kernel()
        return F.conv2d(x, kernel, padding=kernel.shape[-1] // 2, groups=self.groups)


class PidiBlock(nn.Module):
    """A convolution per channel and one over channels, around which the input goes."""

    def __init__(self, kind: str, into: int, out: int, halves: bool) -> None:
        super().__init__()
        self.halves = halves
        if halves:
            self.shortcut = nn.Conv2d(into, out, 1)
        self.conv1 = DifferenceConv(kind, into, into, groups=into)
        self.conv2 = nn.Conv2d(into, out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.halves:
            x = F.max_pool2d(x, 2)
        found: Tensor = self.conv2(F.relu(self.conv1(x))) + (self.shortcut(x) if self.halves else x)
        return found


class Dilations(nn.Module):
    """Dilated convolutions for what is near and far, of one level."""

    def __init__(self, into: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, PIDI_REDUCED, 1)
        for number, reach in enumerate((5, 7, 9, 11), 1):
            layer = nn.Conv2d(PIDI_REDUCED, PIDI_REDUCED, 3, padding=reach, dilation=reach, bias=False)
            setattr(self, f"conv2_{number}", layer)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(F.relu(x))
        return torch.stack([getattr(self, f"conv2_{number}")(x) for number in range(1, 5)]).sum(0)


class Attention(nn.Module):
    """How much each place of a level counts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(PIDI_REDUCED, 4, 1)
        self.conv2 = nn.Conv2d(4, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x * self.conv2(self.conv1(F.relu(x))).sigmoid()
        return found


class Reduce(nn.Module):
    """A level's edges."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(PIDI_REDUCED, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(x)
        return found


class PidiNet(nn.Module):
    """Four levels of four blocks; the kinds of differences take turns."""

    def __init__(self) -> None:
        super().__init__()
        widths = (PIDI_WIDTH, 2 * PIDI_WIDTH, 4 * PIDI_WIDTH, 4 * PIDI_WIDTH)
        self.init_block = DifferenceConv(DIFFERENCES[0], 3, PIDI_WIDTH)
        before = PIDI_WIDTH
        for level, width in enumerate(widths):
            for place in range(4):
                if level or place:
                    block = PidiBlock(DIFFERENCES[place], before, width, halves=level > 0 and place == 0)
                    setattr(self, f"block{level + 1}_{place if level == 0 else place + 1}", block)
                    before = width
        self.dilations = nn.ModuleList(Dilations(width) for width in widths)
        self.attentions = nn.ModuleList(Attention() for _ in widths)
        self.conv_reduces = nn.ModuleList(Reduce() for _ in widths)
        self.classifier = nn.Conv2d(len(widths), 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        """An image [1,3,H,W] in 0..1, blue first, to edges [1,1,H,W] in 0..1."""
        x, found = self.init_block(image), []
        for level in range(4):
            for place in range(1, 4 if level == 0 else 5):
                x = getattr(self, f"block{level + 1}_{place}")(x)
            edges = self.conv_reduces[level](self.attentions[level](self.dilations[level](x)))
            found.append(F.interpolate(edges, size=image.shape[2:], mode="bilinear", align_corners=False))
        result: Tensor = self.classifier(torch.cat(found, dim=1)).sigmoid()
        return result


@torch.inference_mode()
def hed(image: Pixels, path: Path) -> Tensor:
    """Edges [1,1,H,W] in 0..1 of [H,W,3]."""
    edges: Tensor = filled(Hed(), path)(as_batch(image))
    return edges


@torch.inference_mode()
def pidinet(image: Pixels, path: Path) -> Tensor:
    """Edges [1,1,H,W] in 0..1 of [H,W,3]."""
    edges: Tensor = filled(PidiNet(), path)(as_batch(image[:, :, ::-1]) / 255.0)
    return edges


def soft(edges: Tensor) -> Pixels:
    return as_bytes(edges)


def safe(edges: Tensor, steps: int = SAFE_STEPS) -> Pixels:
    """In few steps, which hold nothing of the image besides its edges; 0: as they are."""
    return as_bytes((edges * (steps + 1)).floor() / steps if steps else edges)


def sure(edges: Tensor) -> Pixels:
    """Only those that are more likely edges than not, in white."""
    return as_bytes((edges > 0.5).to(edges.dtype))


def scribble(edges: Tensor) -> Pixels:
    """Thick lines along the ridges of the edges."""
    smooth = blurred(as_bytes(edges)[:, :, None].astype(np.float32), SCRIBBLE_SIGMA)[:, :, 0]
    padded = np.pad(smooth, 1, mode="constant", constant_values=-np.inf)
    height, width = smooth.shape
    is_ridge = np.zeros(smooth.shape, bool)
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        one = padded[1 + down : 1 + down + height, 1 + right : 1 + right + width]
        other = padded[1 - down : 1 - down + height, 1 - right : 1 - right + width]
        is_ridge |= (smooth >= one) & (smooth >= other)
    lines = np.where(is_ridge & (smooth > SCRIBBLE_THRESHOLD), 255.0, 0.0).astype(np.float32)
    thick = blurred(lines[:, :, None], SCRIBBLE_SIGMA)[:, :, 0]
    return np.where(np.rint(thick) > SCRIBBLE_LEVEL, 255, 0).astype(np.uint8)
