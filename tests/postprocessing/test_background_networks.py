"""U-2-Net, IS-Net and BiRefNet against a second way to compute them: functions over the tensors of a file, with Swin's
windows and the deformed kernels place by place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates
from torch import Tensor
from torch.nn import functional as F

from tests.extensions import built_in
from tests.postprocessing.background_files import DEPTHS, HEADS, HEIGHTS, KERNELS, WINDOW, birefnet, nested_u

Tensors = Mapping[str, Tensor]
NEAR = 1e-4


@pytest.fixture(scope="module", autouse=True)
def extensions() -> None:
    built_in()


def library(name: str) -> Any:
    """A module of the extension."""
    import importlib

    return importlib.import_module(f"lib_background.{name}")


def conv(tensors: Tensors, name: str, x: Tensor, reach: int = 1, stride: int = 1) -> Tensor:
    weight = tensors[f"{name}.weight"]
    pad = reach * (weight.shape[-1] // 2)
    return F.conv2d(x, weight, tensors.get(f"{name}.bias"), stride, pad, reach)


def normed(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    mean, var, weight, bias = (
        tensors[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def larger(x: Tensor, size: Any, corners: bool) -> Tensor:
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=corners)


# -- U-2-Net and IS-Net ---------------------------------------------------------------------------------------------


def u_block(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    """By recursion: what is below a level, enlarged, beside what the level was."""
    height, is_flat = HEIGHTS[name], name.startswith(("stage5", "stage6"))

    def layer(place: str, x: Tensor, reach: int) -> Tensor:
        found = conv(tensors, f"{name}.rebnconv{place}.conv_s1", x, reach)
        return normed(tensors, f"{name}.rebnconv{place}.bn_s1", found).relu()

    def below(level: int, x: Tensor) -> Tensor:
        reach = 2 ** (level - 1) if is_flat else 1
        if level == height:
            return layer(str(level), x, reach if is_flat else 2)
        here = layer(str(level), x, reach)
        is_last = is_flat or level >= height - 1
        deep = below(level + 1, here if is_last else F.max_pool2d(here, 2, 2, ceil_mode=True))
        return layer(f"{level}d", torch.cat([larger(deep, here.shape[2:], False), here], 1), reach)

    whole = layer("in", x, 1)
    return below(1, whole) + whole


def whole_u(tensors: Tensors, image: Tensor) -> Tensor:
    is_isnet = "conv_in.weight" in tensors
    first = conv(tensors, "conv_in", image, stride=2) if is_isnet else image
    levels = [u_block(tensors, "stage1", first)]
    for level in range(2, 7):
        levels.append(u_block(tensors, f"stage{level}", F.max_pool2d(levels[-1], 2, 2, ceil_mode=True)))
    deep, sides = levels[5], [conv(tensors, "side6", levels[5])]
    for level in range(5, 0, -1):
        beside = levels[level - 1]
        deep = u_block(tensors, f"stage{level}d", torch.cat([larger(deep, beside.shape[2:], False), beside], 1))
        sides.insert(0, conv(tensors, f"side{level}", deep))
    if is_isnet:
        return larger(sides[0], image.shape[2:], False)
    return conv(tensors, "outconv", torch.cat([larger(side, image.shape[2:], False) for side in sides], 1))


@pytest.mark.parametrize("is_isnet", [False, True])
def test_nested_us_compute_as_their_paper_says(is_isnet: bool) -> None:
    tensors = nested_u(is_isnet)
    net = library("nested_u").NestedU({key: tuple(tensor.shape) for key, tensor in tensors.items()})
    net.load_state_dict(tensors)
    image = torch.randn(1, 3, 70, 90, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected, found = whole_u(tensors, image), net.eval()(image)
    assert found.shape == (1, 1, 70, 90) and float(found.std()) > 0.01
    assert float((found - expected).abs().max()) < NEAR * float(expected.abs().max())


# -- BiRefNet -------------------------------------------------------------------------------------------------------


def deformed(x: NDArray[Any], offsets: NDArray[Any], masks: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
    """[D,h,w]: every value of the image that a place of the kernel points at, by scipy's interpolation."""
    side = weight.shape[-1]
    rows, columns = np.mgrid[: x.shape[1], : x.shape[2]]
    found = np.zeros((len(weight), *x.shape[1:]))
    for down in range(side):
        for right in range(side):
            place = down * side + right
            at = (rows + down - side // 2 + offsets[2 * place], columns + right - side // 2 + offsets[2 * place + 1])
            for channel in range(len(x)):
                seen = map_coordinates(x[channel], at, order=1, mode="grid-constant") * masks[place]
                found += weight[:, channel, down, right][:, None, None] * seen
    return found


def decoder_block(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    x = normed(tensors, f"{name}.bn_in", conv(tensors, f"{name}.conv_in", x)).relu()
    parts = []
    for part in ("aspp1", *(f"aspp_deforms.{place}" for place in range(len(KERNELS)))):
        own = f"{name}.dec_att.{part}"
        offsets = conv(tensors, f"{own}.atrous_conv.offset_conv", x)[0].double().numpy()
        masks = 2 * conv(tensors, f"{own}.atrous_conv.modulator_conv", x)[0].sigmoid().double().numpy()
        weight = tensors[f"{own}.atrous_conv.regular_conv.weight"].double().numpy()
        seen = torch.from_numpy(deformed(x[0].double().numpy(), offsets, masks, weight)).float()[None]
        parts.append(normed(tensors, f"{own}.bn", seen).relu())
    mean = conv(tensors, f"{name}.dec_att.global_avg_pool.1", x.mean((2, 3), keepdim=True))
    mean = normed(tensors, f"{name}.dec_att.global_avg_pool.2", mean).relu()
    parts.append(mean.repeat(1, 1, *x.shape[2:]))
    x = normed(tensors, f"{name}.dec_att.bn1", conv(tensors, f"{name}.dec_att.conv1", torch.cat(parts, 1))).relu()
    return normed(tensors, f"{name}.bn_out", conv(tensors, f"{name}.conv_out", x))


def layer_norm(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def linear(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


def windows_attended(tensors: Tensors, name: str, x: Tensor, heads: int, shift: int) -> Tensor:
    """[h,w,C]: each pixel to those of its window, one window after the other; those that the shift brought together
    from two ends of the image do not see each other."""
    height, width, channels = x.shape
    x = F.pad(x, (0, 0, 0, -width % WINDOW, 0, -height % WINDOW))
    high, wide = x.shape[:2]
    band = torch.zeros(high, wide)
    for number, (begin, end) in enumerate(((0, -WINDOW), (-WINDOW, -shift or None), (-shift or high, None))):
        band[slice(begin, end)] += 3 * number
        band[:, slice(begin, end)] += number
    x = x.roll((-shift, -shift), (0, 1))
    table = tensors[f"{name}.relative_position_bias_table"]
    places = [(row, column) for row in range(WINDOW) for column in range(WINDOW)]
    near = torch.stack(
        [
            torch.stack([table[(a - c + WINDOW - 1) * (2 * WINDOW - 1) + b - d + WINDOW - 1] for c, d in places])
            for a, b in places
        ]
    ).permute(2, 0, 1)
    found = torch.zeros_like(x)
    for top in range(0, high, WINDOW):
        for left in range(0, wide, WINDOW):
            part = (slice(top, top + WINDOW), slice(left, left + WINDOW))
            mixed = linear(tensors, f"{name}.qkv", x[part].reshape(-1, channels)).reshape(
                -1, 3, heads, channels // heads
            )
            q, k, v = mixed.permute(1, 2, 0, 3)
            weights = q @ k.transpose(1, 2) * (channels // heads) ** -0.5 + near
            if shift:
                own = band[part].flatten()
                weights = weights - 100.0 * (own[:, None] != own[None])
            out = (weights.softmax(-1) @ v).transpose(0, 1).reshape(-1, channels)
            found[part] = linear(tensors, f"{name}.proj", out).reshape(WINDOW, WINDOW, channels)
    return found.roll((shift, shift), (0, 1))[:height, :width]


def swin(tensors: Tensors, image: Tensor) -> list[Tensor]:
    x = F.conv2d(image, tensors["bb.patch_embed.proj.weight"], tensors["bb.patch_embed.proj.bias"], stride=4)
    x, levels = layer_norm(tensors, "bb.patch_embed.norm", x[0].permute(1, 2, 0)), []
    for stage, (depth, heads) in enumerate(zip(DEPTHS, HEADS, strict=True)):
        for number in range(depth):
            name = f"bb.layers.{stage}.blocks.{number}"
            shift = WINDOW // 2 if number % 2 else 0
            x = x + windows_attended(tensors, f"{name}.attn", layer_norm(tensors, f"{name}.norm1", x), heads, shift)
            inner = F.gelu(linear(tensors, f"{name}.mlp.fc1", layer_norm(tensors, f"{name}.norm2", x)))
            x = x + linear(tensors, f"{name}.mlp.fc2", inner)
        levels.append(layer_norm(tensors, f"bb.norm{stage}", x).permute(2, 0, 1)[None])
        if stage < len(DEPTHS) - 1:
            x = F.pad(x, (0, 0, 0, x.shape[1] % 2, 0, x.shape[0] % 2))
            x = torch.cat([x[0::2, 0::2], x[1::2, 0::2], x[0::2, 1::2], x[1::2, 1::2]], -1)
            name = f"bb.layers.{stage}.downsample"
            x = linear(tensors, f"{name}.reduction", layer_norm(tensors, f"{name}.norm", x))
    return levels


def whole_birefnet(tensors: Tensors, image: Tensor) -> Tensor:
    half = larger(image, [side // 2 for side in image.shape[2:]], True)
    levels = [
        torch.cat([one, larger(other, one.shape[2:], True)], 1)
        for one, other in zip(swin(tensors, image), swin(tensors, half), strict=True)
    ]
    deep = torch.cat([larger(level, levels[3].shape[2:], True) for level in levels], 1)
    levels[3] = decoder_block(tensors, "squeeze_module.0", deep)

    def with_image(x: Tensor, level: int) -> Tensor:
        height, width = x.shape[2:]
        parts = [
            image[:, channel : channel + 1, top : top + height, left : left + width]
            for channel in range(3)
            for top in range(0, image.shape[2], height)
            for left in range(0, image.shape[3], width)
        ]
        name = f"decoder.ipt_blk{level}"
        return torch.cat([x, conv(tensors, f"{name}.conv_out", conv(tensors, f"{name}.conv1", torch.cat(parts, 1)))], 1)

    x = decoder_block(tensors, "decoder.decoder_block4", with_image(levels[3], 5))
    for level in (4, 3, 2):
        gate = normed(tensors, f"decoder.gdt_convs_{level}.1", conv(tensors, f"decoder.gdt_convs_{level}.0", x)).relu()
        x = x * conv(tensors, f"decoder.gdt_convs_attn_{level}.0", gate).sigmoid()
        finer = levels[level - 2]
        x = larger(x, finer.shape[2:], True) + conv(tensors, f"decoder.lateral_block{level}.conv", finer)
        x = decoder_block(tensors, f"decoder.decoder_block{level - 1}", with_image(x, level))
    return conv(tensors, "decoder.conv_out1.0", with_image(larger(x, image.shape[2:], True), 1))


def test_birefnet_computes_as_its_paper_says() -> None:
    """Sides of 160 and 96 pixels: windows are padded, shifted, and levels have odd sides."""
    tensors, part = birefnet(), library("birefnet")
    shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    net, rows = part.BiRefNet(shapes), part.rows_of(shapes, "")
    net.load_state_dict(
        {
            ours: tensors[source.key]
            if source.rows is None
            else torch.cat([tensors[source.key][begin:end] for begin, end in source.rows])
            for ours, source in rows.sources.items()
        }
    )
    image = torch.randn(1, 3, 160, 96, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected, found = whole_birefnet(tensors, image), net.eval()(image)
    assert found.shape == (1, 1, 160, 96) and float(found.std()) > 0.01
    assert float((found - expected).abs().max()) < NEAR * float(expected.abs().max())
