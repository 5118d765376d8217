"""Straight lines by M-LSD (Gu et al. 2022, arXiv:2106.00186), the large network: a MobileNetV2 whose levels are put
together again, and lines from a map of their middles and of where their ends are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.detectors.weights import as_batch, filled
from lib_controlnet.pixels import Pixels, resize_area

SIDE, MAP_SIDE, CANDIDATES = 512, 256, 200
STEM = 32
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
"""Widening, width, number of blocks and first stride of the backbone's stages."""
WIDTH, OUTPUTS, FIRST_USED = 64, 16, 7
"""Of the maps; what comes before the seventh is for training. The middle is the first then, then the ends' offsets."""


class BackboneConv(nn.ModuleList):
    """Convolution and norm, then ReLU6; with stride 2 the padding is right and below, as TensorFlow has it."""

    def __init__(self, into: int, out: int, side: int = 3, stride: int = 1, groups: int = 1) -> None:
        padding = 0 if stride == 2 else side // 2
        conv = nn.Conv2d(into, out, side, stride, padding, groups=groups, bias=False)
        super().__init__([conv, nn.BatchNorm2d(out)])
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        conv, norm = self
        return F.relu6(norm(conv(F.pad(x, (0, 1, 0, 1)) if self.stride == 2 else x)))


class Inverted(nn.Module):
    """An inverted residual of MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381)."""

    def __init__(self, into: int, out: int, stride: int, widening: int) -> None:
        super().__init__()
        inner = into * widening
        first = [] if widening == 1 else [BackboneConv(into, inner, side=1)]
        self.conv = nn.Sequential(
            *first,
            BackboneConv(inner, inner, stride=stride, groups=inner),
            nn.Conv2d(inner, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.is_residual = stride == 1 and into == out

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(x)
        return x + found if self.is_residual else found


class Backbone(nn.Module):
    """An image with a channel of ones [1,4,H,W] to features of 1/2, 1/4, 1/8 and twice 1/16 of its sides."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [BackboneConv(4, STEM, stride=2)]
        into, self.taken = STEM, []
        for widening, width, count, stride in STAGES:
            for number in range(count):
                layers.append(Inverted(into, width, stride if number == 0 else 1, widening))
                into = width
            self.taken.append(len(layers) - 1)
        self.features = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        found = []
        for place, layer in enumerate(self.features):
            x = layer(x)
            if place in self.taken:
                found.append(x)
        return found


def _conv(into: int, out: int, side: int = 3, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (side // 2)
    return nn.Sequential(nn.Conv2d(into, out, side, padding=padding, dilation=dilation), nn.BatchNorm2d(out), nn.ReLU())


class Joined(nn.Module):
    """A level beside the one below it, which is enlarged where it is smaller."""

    def __init__(self, fine: int, coarse: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = _conv(coarse, WIDTH, side=1), _conv(fine, WIDTH, side=1)

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        fine, coarse = self.conv2(fine), self.conv1(coarse)
        if coarse.shape != fine.shape:
            coarse = F.interpolate(coarse, scale_factor=2.0, mode="bilinear", align_corners=True)
        return torch.cat([fine, coarse], dim=1)


class Narrowed(nn.Module):
    """Two convolutions, around the first of which the input goes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = _conv(2 * WIDTH, 2 * WIDTH), _conv(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv2(self.conv1(x) + x)
        return found


class Ended(nn.Module):
    """The last convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = _conv(WIDTH, WIDTH, dilation=5), _conv(WIDTH, WIDTH)
        self.conv3 = nn.Conv2d(WIDTH, OUTPUTS, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv3(self.conv2(self.conv1(x)))
        return found


class LineNet(nn.Module):
    """The whole network, its layers numbered as in its authors' files."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        widths = [stage[1] for stage in STAGES]
        for number, level in zip((15, 17, 19, 21), (3, 2, 1, 0), strict=True):
            setattr(self, f"block{number}", Joined(widths[level], widths[4] if number == 15 else WIDTH))
            setattr(self, f"block{number + 1}", Narrowed())
        self.block23 = Ended()

    def forward(self, image: Tensor) -> Tensor:
        """[1,4,512,512] in -1..1 to maps [1,9,256,256]: the middle of a line, offsets of its ends, and others."""
        *levels, x = self.backbone(image)
        for number, level in zip((15, 17, 19, 21), reversed(levels), strict=True):
            x = getattr(self, f"block{number + 1}")(getattr(self, f"block{number}")(level, x))
        found: Tensor = self.block23(x)
        return found[:, FIRST_USED:]


def lines_of(maps: Tensor, min_score: float, min_length: float) -> list[tuple[float, float, float, float]]:
    """Lines x, y, x, y in cells of maps [1,5 or more,h,w], the surest first; `min_length` in cells."""
    middle, ends = maps[:, :1].sigmoid(), maps[0, 1:5]
    peaks = torch.where(F.max_pool2d(middle, 3, stride=1, padding=1) == middle, middle, 0.0).flatten()
    scores, places = peaks.topk(min(CANDIDATES, len(peaks)))
    found = []
    for score, place in zip(scores.tolist(), places.tolist(), strict=True):
        y, x = divmod(place, maps.shape[-1])
        from_x, from_y, to_x, to_y = ends[:, y, x].tolist()
        if score > min_score and float(np.hypot(from_x - to_x, from_y - to_y)) > min_length:
            found.append((x + from_x, y + from_y, x + to_x, y + to_y))
    return found


@torch.inference_mode()
def drawing(image: Pixels, path: Path, min_score: float, min_length: float) -> Pixels:
    """White lines on black [H,W] of [H,W,3]."""
    height, width = image.shape[:2]
    small = as_batch(resize_area(image, SIDE, SIDE))
    x = torch.cat([small, torch.ones_like(small[:, :1])], dim=1) / 127.5 - 1.0
    lines = lines_of(filled(LineNet(), path)(x), min_score, min_length)
    canvas = Image.new("L", (width, height))
    draw = ImageDraw.Draw(canvas)
    for line in lines:
        ends = [int(value * (width, height)[place % 2] / MAP_SIDE) for place, value in enumerate(line)]
        draw.line(ends, fill=255, width=1)
    return np.asarray(canvas)
