"""A diffusers AutoencoderKL in tiles, exactly: the device only ever holds one tile of a large feature map.

Whole maps are in main memory. Each convolution reads a tile with the border it needs, from its neighbours, and writes
a tile; each group norm uses mean and variance of the whole map, summed up while its tiles were written. So there is
no seam to hide, nothing is computed twice, and images are those of the whole model up to rounding. What works at
the size of the latent, with the attention of the middle, runs as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SMALLEST_TILE = 8  # latents


def decode_tiled(vae: Any, latent: Tensor, tile: int, few_tiles: bool = False) -> Tensor:
    """`latent` [B,4,h,w] as the VAE takes it, to images [B,3,8h,8w] on the same device.

    A tile has the area of `tile` latents a side (at least 8), counted at the size of the image. What is no larger
    is decoded as a whole, with the very numbers of an untiled run. `few_tiles` computes only the largest tiles of each
    map, for those who ask what memory it takes.
    """
    tile = max(tile, SMALLEST_TILE)
    decoder = vae.decoder
    scale = 2 ** sum(block.upsamplers is not None for block in decoder.up_blocks)
    if max(latent.shape[-2:]) <= tile:
        whole: Tensor = vae.decode(latent, return_dict=False)[0]
        return whole
    x = vae.post_quant_conv(latent) if vae.post_quant_conv is not None else latent
    device = latent.device
    tiles = Tiles(device, tile * scale, few_tiles)
    feature_map = tiles.of(decoder.mid_block(decoder.conv_in(x)))
    for block in decoder.up_blocks:
        for resnet in block.resnets:
            feature_map = _residual(tiles, feature_map, resnet)
        for upsampler in block.upsamplers or ():
            feature_map = tiles.convolve(feature_map, upsampler.conv, enlarge=True)
    prepare = _norm(feature_map, decoder.conv_norm_out, decoder.conv_act)
    return tiles.convolve(feature_map, decoder.conv_out, prepare).data.to(device)


def encode_tiled(vae: Any, images: Tensor, tile: int, few_tiles: bool = False) -> Tensor:
    """Images [B,3,H,W] (multiples of 8) to the VAE's moments [B,8,h,w]: mean and log variance, not scaled.

    `few_tiles` as above.
    """
    encoder = vae.encoder
    scale = 2 ** sum(block.downsamplers is not None for block in encoder.down_blocks)
    tiles = Tiles(images.device, max(tile, SMALLEST_TILE) * scale, few_tiles)
    feature_map = tiles.convolve(tiles.of(images), encoder.conv_in)
    for block in encoder.down_blocks:
        for resnet in block.resnets:
            feature_map = _residual(tiles, feature_map, resnet)
        for downsampler in block.downsamplers or ():
            # Down here the convolution pads below and to the right only.
            feature_map = tiles.convolve(feature_map, downsampler.conv, before=downsampler.padding)
    x = encoder.mid_block(feature_map.data.to(images.device))
    x = encoder.conv_out(encoder.conv_act(encoder.conv_norm_out(x)))
    moments: Tensor = vae.quant_conv(x) if vae.quant_conv is not None else x
    return moments


Prepare = Callable[[Tensor], Tensor]


@dataclass
class FeatureMap:
    """[B,C,H,W] in main memory, with the sums that group norms need: float64 [B,C], of values and of squares."""

    data: Tensor
    total: Tensor = field(init=False)
    squares: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.total = torch.zeros(self.data.shape[:2], dtype=torch.float64)
        self.squares = torch.zeros_like(self.total)

    def write(self, part: Tensor, top: int, left: int) -> None:
        """Put a tile in its place."""
        height, width = part.shape[-2:]
        self.data[:, :, top : top + height, left : left + width] = part
        variance, mean = torch.var_mean(part.float(), (-2, -1), correction=0)
        mean, variance = mean.cpu().double(), variance.cpu().double()
        self.total += mean * height * width
        self.squares += (variance + mean.square()) * height * width


@dataclass(frozen=True)
class Tiles:
    """Computes on `device`, in tiles whose area is at most that of `side` by `side` pixels."""

    device: torch.device
    side: int
    few_tiles: bool = False

    def of(self, x: Tensor) -> FeatureMap:
        """A map of what is there as a whole."""
        feature_map = FeatureMap(torch.empty(x.shape, dtype=x.dtype))
        feature_map.write(x, 0, 0)
        return feature_map

    def convolve(
        self,
        source: FeatureMap,
        convolution: nn.Conv2d,
        prepare: Prepare | None = None,
        enlarge: bool = False,
        before: int | None = None,
        onto: FeatureMap | None = None,
        shortcut: nn.Conv2d | None = None,
    ) -> FeatureMap:
        """`convolution` of the map after `prepare` (which works on each pixel alone).

        `enlarge` doubles the map first, by nearest neighbour. `before` is the padding above and to the left, where it
        is not that of the convolution; below and to the right there is what the kernel then needs. `onto`: another map
        of the result's size, which is added, through `shortcut` (1x1) where there is one. The result takes its place in
        memory, if it has as many channels: after the call it must not be used.
        """
        size, stride = int(convolution.kernel_size[0]), int(convolution.stride[0])
        border = int(convolution.padding[0]) if before is None else before
        wrap = convolution.padding_mode == "circular"
        height, width = ((side * 2 if enlarge else side) // stride for side in source.data.shape[-2:])
        shape = (source.data.shape[0], convolution.out_channels, height, width)
        if onto is not None and onto.data.shape[1] >= shape[1]:
            result = FeatureMap(onto.data[:, : shape[1]])
        else:
            result = FeatureMap(torch.empty(shape, dtype=source.data.dtype))
        weight, bias = convolution.weight, convolution.bias
        for top, bottom, left, right in self._boxes(height, width):
            rows, columns = (
                (first * stride - border, (last - 1) * stride + size - border)
                for first, last in ((top, bottom), (left, right))
            )
            if enlarge:
                part = self._window(source.data, _halved(rows), _halved(columns), wrap, prepare)
                part = F.interpolate(part, scale_factor=2.0, mode="nearest")
                y, x = rows[0] % 2, columns[0] % 2
                part = part[:, :, y : y + rows[1] - rows[0], x : x + columns[1] - columns[0]]
            else:
                part = self._window(source.data, rows, columns, wrap, prepare)
            part = F.conv2d(part, weight, bias, stride)
            if onto is not None:  # of it only this tile is read, before it is written
                added = onto.data[:, :, top:bottom, left:right].to(self.device)
                part = part + (added if shortcut is None else F.conv2d(added, shortcut.weight, shortcut.bias))
            result.write(part, top, left)
        return result

    def _boxes(self, height: int, width: int) -> Iterator[tuple[int, int, int, int]]:
        """Top, bottom, left, right of each tile. Where few are enough, two that take the most: they have neighbours on
        all sides, if there are any, and the second is made while the first is still there."""
        tops, lefts = range(0, height, self.side), range(0, width, self.side)
        if self.few_tiles:
            tops, lefts = (starts[1:3] if len(starts) > 3 else starts[:2] for starts in (tops, lefts))
            tops = tops[:1] if len(lefts) > 1 else tops
        for top in tops:
            for left in lefts:
                yield top, min(top + self.side, height), left, min(left + self.side, width)

    def _window(
        self, data: Tensor, rows: tuple[int, int], columns: tuple[int, int], wrap: bool, prepare: Prepare | None
    ) -> Tensor:
        """Rows and columns, start to stop, on the device; beyond the map lies its other side (`wrap`), or zero.

        Zeros are added after `prepare`, as the convolution pads what the norm has made.
        """
        height, width = data.shape[-2:]
        if wrap:
            y, x = (torch.arange(*span) % side for span, side in ((rows, height), (columns, width)))
            part = data[:, :, y][..., x].to(self.device)
            return part if prepare is None else prepare(part)
        inside = data[:, :, max(rows[0], 0) : min(rows[1], height), max(columns[0], 0) : min(columns[1], width)]
        part = inside.to(self.device)
        part = part if prepare is None else prepare(part)
        left, right = max(-columns[0], 0), max(columns[1] - width, 0)
        return F.pad(part, (left, right, max(-rows[0], 0), max(rows[1] - height, 0)))


def _halved(span: tuple[int, int]) -> tuple[int, int]:
    """The part of the small map that a part of the doubled one comes from."""
    return span[0] // 2, -(-span[1] // 2)


def _norm(feature_map: FeatureMap, norm: nn.GroupNorm, activation: Prepare) -> Prepare:
    """A group norm with the whole map's mean and variance, then the activation, for any part of the map."""
    batch, channels, height, width = feature_map.data.shape
    grouped = (batch, norm.num_groups, channels // norm.num_groups)
    count = grouped[2] * height * width
    mean = feature_map.total.view(grouped).sum(-1) / count
    variance = (feature_map.squares.view(grouped).sum(-1) / count - mean.square()).clamp_min(0)
    inverse = torch.rsqrt(variance + norm.eps)
    scale, shift = (item.repeat_interleave(grouped[2], 1).float() for item in (inverse, -mean * inverse))
    if norm.affine:
        weight, bias = norm.weight.float(), norm.bias.float()
        scale, shift = scale.to(weight.device) * weight, shift.to(weight.device) * weight + bias
    scale, shift = scale[..., None, None], shift[..., None, None]

    def prepare(part: Tensor) -> Tensor:
        normed = torch.addcmul(shift.to(part.device), part.float(), scale.to(part.device))
        return activation(normed.to(part.dtype))

    return prepare


def _residual(tiles: Tiles, x: FeatureMap, resnet: Any) -> FeatureMap:
    """A residual block without a time embedding."""
    hidden = tiles.convolve(x, resnet.conv1, _norm(x, resnet.norm1, resnet.nonlinearity))
    prepare = _norm(hidden, resnet.norm2, resnet.nonlinearity)
    return tiles.convolve(hidden, resnet.conv2, prepare, onto=x, shortcut=resnet.conv_shortcut)
