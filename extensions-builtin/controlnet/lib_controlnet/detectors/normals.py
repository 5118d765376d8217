"""Normals of surfaces (Bae, Budvytis and Cipolla 2021, arXiv:2109.09881): an EfficientNet-B5 (Tan and Le 2019,
arXiv:1905.11946), and a decoder that says four times what it sees, each time finer."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.detectors.weights import as_batch, filled
from lib_controlnet.pixels import Pixels

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STEM, TOP, FIRST_DECODED = 48, 2048, 1024
STAGES = (
    *((24, 3, 3, 1, 1), (40, 5, 3, 2, 6), (64, 5, 5, 2, 6), (128, 7, 3, 2, 6)),
    *((176, 7, 5, 1, 6), (304, 9, 5, 2, 6), (512, 3, 3, 1, 6)),
)
"""Width, blocks, kernel's side, first stride and widening of the encoder's stages: EfficientNet-B5."""
NORM_EPS, NORM_MOMENTUM = 1e-3, 0.01
SQUEEZED = 0.25
TAKEN = (0, 1, 2, 4)
"""The stages whose features the decoder sees, beside the last convolution's."""
MIN_SURENESS = 0.01
HIDDEN = 128


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow does: the larger half right and below."""

    def forward(self, x: Tensor) -> Tensor:
        pads = []
        for size, side, step in zip(reversed(x.shape[2:]), self.kernel_size, self.stride, strict=True):
            whole = max((-(-size // step) - 1) * step + side - size, 0)
            pads += [whole // 2, whole - whole // 2]
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def _norm(width: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, eps=NORM_EPS, momentum=NORM_MOMENTUM)


class Squeeze(nn.Module):
    """How much each channel counts, by its mean over the image."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.conv_reduce, self.conv_expand = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        found: Tensor = x * self.conv_expand(F.silu(self.conv_reduce(mean))).sigmoid()
        return found


class Block(nn.Module):
    """An inverted residual with a squeeze; without widening its layers are named otherwise."""

    def __init__(self, into: int, out: int, side: int, stride: int, widening: int) -> None:
        super().__init__()
        inner = into * widening
        depthwise = SameConv(inner, inner, side, stride, groups=inner, bias=False)
        squeeze, last = Squeeze(inner, max(1, round(into * SQUEEZED))), nn.Conv2d(inner, out, 1, bias=False)
        if widening == 1:
            self.conv_dw, self.bn1, self.se, self.conv_pw, self.bn2 = depthwise, _norm(inner), squeeze, last, _norm(out)
        else:
            self.conv_pw, self.bn1 = nn.Conv2d(into, inner, 1, bias=False), _norm(inner)
            self.conv_dw, self.bn2, self.se = depthwise, _norm(inner), squeeze
            self.conv_pwl, self.bn3 = last, _norm(out)
        self.widens, self.is_residual = widening > 1, stride == 1 and into == out

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor
        if self.widens:
            found = F.silu(self.bn2(self.conv_dw(F.silu(self.bn1(self.conv_pw(x))))))
            found = self.bn3(self.conv_pwl(self.se(found)))
        else:
            found = self.bn2(self.conv_pw(self.se(F.silu(self.bn1(self.conv_dw(x))))))
        return x + found if self.is_residual else found


class Encoder(nn.Module):
    """The EfficientNet without its classifier. What follows `conv_head` is in files, and never used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = SameConv(3, STEM, 3, 2, bias=False), _norm(STEM)
        stages, into = [], STEM
        for width, count, side, stride, widening in STAGES:
            blocks = []
            for number in range(count):
                blocks.append(Block(into, width, side, stride if number == 0 else 1, widening))
                into = width
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)
        self.conv_head = nn.Conv2d(into, TOP, 1, bias=False)

    def forward(self, x: Tensor) -> list[Tensor]:
        """An image [1,3,H,W] to features of 1/2, 1/4, 1/8, 1/16 and 1/32 of its sides."""
        x, found = F.silu(self.bn1(self.conv_stem(x))), []
        for number, stage in enumerate(self.blocks):
            x = stage(x)
            if number in TAKEN:
                found.append(x)
        return [*found, self.conv_head(x)]


class Up(nn.Module):
    """Coarse features in the size of finer ones, and both together."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self._net = nn.Sequential(
            *(nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.LeakyReLU()),
            *(nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.LeakyReLU()),
        )

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        large = F.interpolate(coarse, size=fine.shape[2:], mode="bilinear", align_corners=True)
        found: Tensor = self._net(torch.cat([large, fine], dim=1))
        return found


def _pointwise(into: int) -> nn.Sequential:
    """Layers for each pixel alone: its features and the coarser normal to a finer one."""
    return nn.Sequential(
        *(nn.Conv1d(into + 4, HIDDEN, 1), nn.ReLU(), nn.Conv1d(HIDDEN, HIDDEN, 1), nn.ReLU()),
        *(nn.Conv1d(HIDDEN, HIDDEN, 1), nn.ReLU(), nn.Conv1d(HIDDEN, 4, 1)),
    )


class Decoder(nn.Module):
    """Features back to the size of the image. Normals have three parts and how sure they are."""

    def __init__(self) -> None:
        super().__init__()
        fine = [STAGES[number][0] for number in reversed(TAKEN)]
        widths = [TOP, *(FIRST_DECODED // 2**number for number in range(4))]
        self.conv2 = nn.Conv2d(TOP, TOP, 1)
        for number in range(4):
            setattr(self, f"up{number + 1}", Up(widths[number] + fine[number], widths[number + 1]))
        self.out_conv_res8 = nn.Conv2d(widths[2], 4, 3, padding=1)
        self.out_conv_res4 = _pointwise(widths[2])
        self.out_conv_res2 = _pointwise(widths[3])
        self.out_conv_res1 = _pointwise(widths[4])

    def forward(self, levels: list[Tensor]) -> Tensor:
        """Features of the encoder to normals [1,4,H,W]."""
        *fine, x = levels
        found = [self.conv2(x)]
        for number, level in enumerate(reversed(fine), start=1):
            found.append(getattr(self, f"up{number}")(found[-1], level))
        normal = _of_length_one(self.out_conv_res8(found[2]))
        for layers, features in (
            (self.out_conv_res4, found[2]), (self.out_conv_res2, found[3]), (self.out_conv_res1, found[4])
        ):  # fmt: skip
            known = torch.cat([features, normal], dim=1)
            large = F.interpolate(known, scale_factor=2, mode="bilinear", align_corners=True)
            normal = _of_length_one(layers(large.flatten(2)).reshape(1, 4, *large.shape[2:]))
        return normal


def _of_length_one(normal: Tensor) -> Tensor:
    direction, sureness = normal[:, :3], normal[:, 3:]
    length = direction.square().sum(1, keepdim=True).sqrt() + 1e-10
    return torch.cat([direction / length, F.elu(sureness) + 1.0 + MIN_SURENESS], dim=1)


class NormalNet(nn.Module):
    """Encoder and decoder, by their names in files."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"original_model": Encoder()})
        self.decoder = Decoder()

    def forward(self, image: Tensor) -> Tensor:
        """An image [1,3,H,W], with sides that are multiples of 32, to normals [1,4,H,W]."""
        found: Tensor = self.decoder(self.encoder["original_model"](image))
        return found


@torch.inference_mode()
def normal_map(image: Pixels, path: Path) -> Pixels:
    """The normals [H,W,3] of [H,W,3]."""
    x = as_batch(image) / 255.0
    x = (x - x.new_tensor(MEAN).reshape(1, 3, 1, 1)) / x.new_tensor(STD).reshape(1, 3, 1, 1)
    normal = filled(NormalNet(), path)(x)[0, :3]
    found: Pixels = (((normal + 1) * 0.5).clamp(0, 1) * 255.0).permute(1, 2, 0).numpy().astype("uint8")
    return found
