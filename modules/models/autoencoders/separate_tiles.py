"""A diffusers AutoencoderKL in tiles of their own, as the extension "Tiled VAE" runs it.

Each tile is computed with a border that is cut off at the end, its attention sees only the tile, and what tiles share
are the statistics of the group norms. These are either pooled over the tiles, which then wait for each other at every
norm (in main memory), or estimated on the whole image at the size of one tile, so that no tile waits and hardly any
memory is taken. The image differs slightly from that of the whole model, and from that of `tiling`, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DECODER_BORDER, ENCODER_BORDER = 11, 32
"""Around a tile: cells of the latents, and pixels."""
Statistics = tuple[Tensor, Tensor]
"""Mean and variance of each group, [B, groups], float32."""


@dataclass(frozen=True)
class SeparateTiles:
    """`decoder` and `encoder`: sides of a tile, in cells of the latents and in pixels; 0: in one piece.

    `estimates_decoder`, `estimates_encoder`: whether norms are estimated on a small image. `color_fix`: of the
    encoder's only those before its first reduction are, which keeps its colors.
    """

    decoder: int = 0
    encoder: int = 0
    estimates_decoder: bool = False
    estimates_encoder: bool = False
    color_fix: bool = False

    def decode(self, vae: Any, latent: Tensor) -> Tensor | None:
        """Latents [B,C,h,w] as the VAE takes them to images; None where one tile would show everything, or the VAE is
        none that can be run so."""
        if (
            not self.decoder
            or not _has_group_norms(vae.decoder)
            or max(latent.shape[-2:]) <= self.decoder + 2 * DECODER_BORDER
        ):
            return None
        x = vae.post_quant_conv(latent) if vae.post_quant_conv is not None else latent
        scale = 2 ** sum(block.upsamplers is not None for block in vae.decoder.up_blocks)
        boxes = tile_boxes(x.shape[-2], x.shape[-1], self.decoder, DECODER_BORDER)
        known = (
            _estimated(x, self.decoder, lambda tile: _decoder_steps(vae.decoder, tile))
            if self.estimates_decoder
            else []
        )
        return _run(x, boxes, lambda tile: _decoder_steps(vae.decoder, tile), known, lambda cells: cells * scale)

    def encode(self, vae: Any, images: Tensor) -> Tensor | None:
        """Images [B,3,H,W] to mean and log variance; None as above."""
        if (
            not self.encoder
            or not _has_group_norms(vae.encoder)
            or max(images.shape[-2:]) <= self.encoder + 2 * ENCODER_BORDER
        ):
            return None
        scale = 2 ** sum(block.downsamplers is not None for block in vae.encoder.down_blocks)
        boxes = tile_boxes(images.shape[-2], images.shape[-1], self.encoder, ENCODER_BORDER)
        known: list[Statistics] = []
        if self.estimates_encoder:
            known = _estimated(images, self.encoder, lambda tile: _encoder_steps(vae.encoder, tile))
            if self.color_fix:
                known = known[: 2 * len(vae.encoder.down_blocks[0].resnets)]
        x = _run(images, boxes, lambda tile: _encoder_steps(vae.encoder, tile), known, lambda pixels: pixels // scale)
        moments: Tensor = vae.quant_conv(x) if vae.quant_conv is not None else x
        return moments


def _has_group_norms(half: Any) -> bool:
    """Whether it is of the layout that is known here. What wraps around at its edges (seamless textures) is not cut."""
    return isinstance(getattr(half, "conv_norm_out", None), nn.GroupNorm) and half.conv_in.padding_mode != "circular"


@dataclass(frozen=True)
class TileBox:
    """Left, right, top, bottom: what a tile sees, and what of it is kept, in cells of the input."""

    seen: tuple[int, int, int, int]
    kept: tuple[int, int, int, int]


def tile_boxes(height: int, width: int, side: int, border: int) -> list[TileBox]:
    """Tiles of about the same size, with at most `side` cells a side where that divides well, plus their border."""
    counts = [max(ceil((length - 2 * border) / side), 1) for length in (height, width)]
    sides = [
        round_size(ceil((length - 2 * border) / count), side)
        for length, count in zip((height, width), counts, strict=True)
    ]
    boxes = []
    for row in range(counts[0]):
        top, bottom, *rows = _span(row, sides[0], border, height)
        for column in range(counts[1]):
            left, right, *columns = _span(column, sides[1], border, width)
            boxes.append(TileBox((left, right, top, bottom), (*columns, *rows)))  # type: ignore[arg-type]
    return boxes


def _span(place: int, side: int, border: int, length: int) -> tuple[int, int, int, int]:
    """Return the range of tile `place` along one axis: start and stop of what it sees, and of what is kept."""
    start, stop = border + place * side, min(border + (place + 1) * side, length)
    kept = (start if start > border else 0, stop if stop < length - border else length)
    return max(0, start - border), min(length, stop + border), *kept


def round_size(low: int, high: int) -> int:
    """The next multiple of the largest power of two, from 32 down, that is at least `low` and not above `high`."""
    power = 32
    while power >= 2:
        rounded = ceil(low / power) * power
        if rounded <= high or rounded == low:
            return rounded
        power //= 2
    return low


@dataclass
class _Tile:
    """A tile on its way: its features, and those that a block adds at its end."""

    x: Tensor
    rest: Tensor | None = None

    def to(self, device: torch.device) -> None:
        self.x = self.x.to(device)
        self.rest = None if self.rest is None else self.rest.to(device)


Steps = Callable[[_Tile], Iterator[nn.GroupNorm]]
"""Computes a tile as far as each group norm, which is applied outside before it goes on."""


def _run(
    x: Tensor, boxes: Sequence[TileBox], steps: Steps, known: Sequence[Statistics], scaled: Callable[[int], int]
) -> Tensor:
    """All tiles of `x`, put together. The first norms have the statistics `known`; at the others tiles wait."""
    device, waiting = x.device, torch.device("cpu")
    tiles = []
    for box in boxes:
        left, right, top, bottom = box.seen
        tile = _Tile(x[:, :, top:bottom, left:right])
        tiles.append((box, tile, steps(tile)))
    result: Tensor | None = None
    norms: list[nn.GroupNorm | None] = []
    for _, tile, running in tiles:  # as far as the first norm that is not known
        norm = next(running, None)
        for statistics in known:
            if norm is None:
                break
            tile.x = _normed(tile.x, norm, statistics)
            norm = next(running, None)
        norms.append(norm)
        tile.to(waiting)
    while norms[0] is not None:
        pooled = _pooled(
            [_statistics(tile.x, norm) for (_, tile, _), norm in zip(tiles, norms, strict=True) if norm],
            [tile.x.shape[-2] * tile.x.shape[-1] for _, tile, _ in tiles],
        )
        for place, (_, tile, running) in enumerate(tiles):
            norm = norms[place]
            assert norm is not None  # all tiles pass the same layers
            tile.to(device)
            tile.x = _normed(tile.x, norm, pooled)
            norms[place] = next(running, None)
            tile.to(waiting)
    height, width = (scaled(length) for length in x.shape[-2:])
    for box, tile, _ in tiles:
        if result is None:
            result = torch.empty(x.shape[0], tile.x.shape[1], height, width, dtype=tile.x.dtype)
        left, right, top, bottom = (scaled(edge) for edge in box.kept)
        seen_left, _, seen_top, _ = (scaled(edge) for edge in box.seen)
        part = tile.x[:, :, top - seen_top : bottom - seen_top, left - seen_left : right - seen_left]
        result[:, :, top:bottom, left:right] = part
    assert result is not None
    return result.to(device)


def _estimated(x: Tensor, side: int, steps: Steps) -> list[Statistics]:
    """The statistics of every norm on the whole of `x`, reduced to the size of a tile, with its mean and deviation."""
    small = F.interpolate(x, scale_factor=side / max(x.shape[-2:]), mode="nearest-exact")
    deviation, mean = torch.std_mean(x, dim=(0, 2, 3), keepdim=True)
    own_deviation, own_mean = torch.std_mean(small, dim=(0, 2, 3), keepdim=True)
    small = ((small - own_mean) / own_deviation * deviation + mean).clamp(x.min(), x.max())
    tile = _Tile(small)
    found = []
    for norm in steps(tile):
        statistics = _statistics(tile.x, norm)
        tile.x = _normed(tile.x, norm, statistics)
        found.append(statistics)
    return found


def _statistics(x: Tensor, norm: nn.GroupNorm) -> Statistics:
    variance, mean = torch.var_mean(x.reshape(x.shape[0], norm.num_groups, -1).float(), dim=2, correction=0)
    return mean, variance


def _pooled(found: Sequence[Statistics], pixels: Sequence[int]) -> Statistics:
    """The mean over tiles of means and variances by their pixels: what lies between the tiles is left out."""
    total = sum(pixels)
    mean, variance = (
        torch.stack([each[part] * (count / total) for each, count in zip(found, pixels, strict=True)]).sum(0)
        for part in (0, 1)
    )
    return mean, variance


def _normed(x: Tensor, norm: nn.GroupNorm, statistics: Statistics) -> Tensor:
    mean, variance = (
        each.to(x.device).repeat_interleave(norm.num_channels // norm.num_groups, 1) for each in statistics
    )
    scale = torch.rsqrt(variance + norm.eps)
    shift = -mean * scale
    if norm.affine:
        weight, bias = norm.weight.float(), norm.bias.float()
        scale, shift = scale * weight, shift * weight + bias
    return torch.addcmul(shift[..., None, None], x.float(), scale[..., None, None]).to(x.dtype)


def _residual(tile: _Tile, block: Any) -> Iterator[nn.GroupNorm]:
    tile.rest = tile.x if block.conv_shortcut is None else block.conv_shortcut(tile.x)
    yield block.norm1
    tile.x = block.conv1(block.nonlinearity(tile.x))
    yield block.norm2
    tile.x = block.conv2(block.nonlinearity(tile.x)) + tile.rest
    tile.rest = None


def _attention(tile: _Tile, attention: Any) -> Iterator[nn.GroupNorm]:
    tile.rest = tile.x
    yield attention.group_norm
    batch, channels, height, width = tile.x.shape
    tokens = tile.x.flatten(2).transpose(1, 2)
    query, key, value = (
        layer(tokens).unflatten(2, (attention.heads, -1)).transpose(1, 2)
        for layer in (attention.to_q, attention.to_k, attention.to_v)
    )
    seen = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    seen = attention.to_out[0](seen).transpose(1, 2).reshape(batch, channels, height, width)
    tile.x, tile.rest = seen + tile.rest, None


def _middle(tile: _Tile, block: Any) -> Iterator[nn.GroupNorm]:
    yield from _residual(tile, block.resnets[0])
    for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
        if attention is not None:
            yield from _attention(tile, attention)
        yield from _residual(tile, resnet)


def _decoder_steps(decoder: Any, tile: _Tile) -> Iterator[nn.GroupNorm]:
    tile.x = decoder.conv_in(tile.x)
    yield from _middle(tile, decoder.mid_block)
    for block in decoder.up_blocks:
        for resnet in block.resnets:
            yield from _residual(tile, resnet)
        for upsampler in block.upsamplers or ():
            tile.x = upsampler(tile.x)
    yield decoder.conv_norm_out
    tile.x = decoder.conv_out(decoder.conv_act(tile.x))


def _encoder_steps(encoder: Any, tile: _Tile) -> Iterator[nn.GroupNorm]:
    tile.x = encoder.conv_in(tile.x)
    for block in encoder.down_blocks:
        for resnet in block.resnets:
            yield from _residual(tile, resnet)
        for downsampler in block.downsamplers or ():
            tile.x = downsampler(tile.x)
    yield from _middle(tile, encoder.mid_block)
    yield encoder.conv_norm_out
    tile.x = encoder.conv_out(encoder.conv_act(tile.x))
