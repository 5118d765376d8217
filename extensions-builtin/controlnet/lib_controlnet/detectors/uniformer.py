"""Segmentation by UPerNet (Xiao et al. 2018, arXiv:1807.10221) over UniFormer (Li et al. 2022, arXiv:2201.09450): which
of the 150 classes of ADE20K each pixel is of."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.detectors.palettes import ADE20K, painted
from lib_controlnet.detectors.weights import as_batch, filled
from lib_controlnet.pixels import Pixels

WIDTHS, DEPTHS, HEAD_WIDTH, WIDENING = (64, 128, 320, 512), (3, 4, 8, 3), 64, 4
LOCAL_STAGES = 2
"""The first ones have convolutions where the others have attention."""
CHANNELS, POOLED = 512, (1, 2, 3, 6)
NORM_EPS = 1e-6
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SHORT_SIDE, LONG_SIDE = 512, 2048


class Feed(nn.Module):
    """Two layers for each place alone; convolutions of one pixel, or linear ones."""

    def __init__(self, width: int, is_local: bool) -> None:
        super().__init__()
        inner = WIDENING * width
        self.fc1: nn.Module = nn.Conv2d(width, inner, 1) if is_local else nn.Linear(width, inner)
        self.fc2: nn.Module = nn.Conv2d(inner, width, 1) if is_local else nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return found


class LocalBlock(nn.Module):
    """Places look at those around them, by a convolution per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pos_embed = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv1, self.conv2 = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.attn = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.mlp = Feed(width, is_local=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pos_embed(x)
        x = x + self.conv2(self.attn(self.conv1(self.norm1(x))))
        found: Tensor = x + self.mlp(self.norm2(x))
        return found


class Attention(nn.Module):
    """Every place looks at all others."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, places, width = x.shape
        query, key, value = self.qkv(x).reshape(rows, places, 3, -1, HEAD_WIDTH).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value)
        found: Tensor = self.proj(seen.transpose(1, 2).reshape(rows, places, width))
        return found


class GlobalBlock(nn.Module):
    """A transformer's block, on places in a row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pos_embed = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm1, self.norm2 = nn.LayerNorm(width, NORM_EPS), nn.LayerNorm(width, NORM_EPS)
        self.attn, self.mlp = Attention(width), Feed(width, is_local=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pos_embed(x)
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.attn(self.norm1(tokens))
        tokens = tokens + self.mlp(self.norm2(tokens))
        found: Tensor = tokens.transpose(1, 2).reshape(x.shape)
        return found


def _normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    found: Tensor = norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return found


class PatchEmbed(nn.Module):
    """Each patch as one place."""

    def __init__(self, into: int, width: int, side: int) -> None:
        super().__init__()
        self.proj, self.norm = nn.Conv2d(into, width, side, stride=side), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        patches: Tensor = self.proj(x)
        return _normed(self.norm, patches)


class UniFormer(nn.Module):
    """An image [1,3,H,W] to features of 1/4, 1/8, 1/16 and 1/32 of its sides."""

    def __init__(self) -> None:
        super().__init__()
        into = 3
        for number, (width, depth) in enumerate(zip(WIDTHS, DEPTHS, strict=True), start=1):
            setattr(self, f"patch_embed{number}", PatchEmbed(into, width, 4 if number == 1 else 2))
            block = LocalBlock if number <= LOCAL_STAGES else GlobalBlock
            setattr(self, f"blocks{number}", nn.Sequential(*(block(width) for _ in range(depth))))
            setattr(self, f"norm{number}", nn.LayerNorm(width, NORM_EPS))
            into = width

    def forward(self, x: Tensor) -> list[Tensor]:
        found = []
        for number in range(1, len(WIDTHS) + 1):
            x = getattr(self, f"blocks{number}")(getattr(self, f"patch_embed{number}")(x))
            found.append(_normed(getattr(self, f"norm{number}"), x))
        return found


class ConvNorm(nn.Module):
    """Convolution, norm, ReLU."""

    def __init__(self, into: int, out: int, side: int = 1) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(into, out, side, padding=side // 2, bias=False), nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = F.relu(self.bn(self.conv(x)))
        return found


def _sized(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=False)


class Head(nn.Module):
    """The coarsest level with its means over parts of the image, added to the finer ones; then all together."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.psp_modules = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(side), ConvNorm(WIDTHS[-1], CHANNELS)) for side in POOLED
        )
        self.bottleneck = ConvNorm(WIDTHS[-1] + len(POOLED) * CHANNELS, CHANNELS, 3)
        self.lateral_convs = nn.ModuleList(ConvNorm(width, CHANNELS) for width in WIDTHS[:-1])
        self.fpn_convs = nn.ModuleList(ConvNorm(CHANNELS, CHANNELS, 3) for _ in WIDTHS[:-1])
        self.fpn_bottleneck = ConvNorm(len(WIDTHS) * CHANNELS, CHANNELS, 3)
        self.conv_seg = nn.Conv2d(CHANNELS, classes, 1)

    def forward(self, levels: list[Tensor]) -> Tensor:
        """Features, finest first, to how much each class is there, [1,classes,h,w]."""
        last = levels[-1]
        pooled = [_sized(layers(last), last) for layers in self.psp_modules]
        laterals = [layer(level) for layer, level in zip(self.lateral_convs, levels, strict=False)]
        laterals.append(self.bottleneck(torch.cat([last, *pooled], dim=1)))
        for place in range(len(laterals) - 1, 0, -1):
            laterals[place - 1] = laterals[place - 1] + _sized(laterals[place], laterals[place - 1])
        outs = [layer(level) for layer, level in zip(self.fpn_convs, laterals, strict=False)]
        outs = [outs[0], *(_sized(each, outs[0]) for each in (*outs[1:], laterals[-1]))]
        found: Tensor = self.conv_seg(self.fpn_bottleneck(torch.cat(outs, dim=1)))
        return found


class SegmentNet(nn.Module):
    """Both, by their names in files."""

    def __init__(self, classes: int = len(ADE20K)) -> None:
        super().__init__()
        self.backbone, self.decode_head = UniFormer(), Head(classes)

    def forward(self, image: Tensor) -> Tensor:
        found: Tensor = self.decode_head(self.backbone(image))
        return found


@torch.inference_mode()
def segments(image: Pixels, path: Path) -> Pixels:
    """[H,W,3] painted in the color of each pixel's class."""
    net = filled(SegmentNet(), path)
    height, width = image.shape[:2]
    scale = min(SHORT_SIDE / min(height, width), LONG_SIDE / max(height, width))
    size = [int(side * scale + 0.5) for side in (height, width)]
    x = F.interpolate(as_batch(image), size=size, mode="bilinear", align_corners=False)
    x = (x - x.new_tensor(MEAN).reshape(1, 3, 1, 1)) / x.new_tensor(STD).reshape(1, 3, 1, 1)
    classes = F.interpolate(_sized(net(x), x), size=(height, width), mode="bilinear", align_corners=False)
    return painted(classes[0].argmax(0).numpy(), ADE20K)
