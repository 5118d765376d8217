"""One image through a causal video VAE (diffusers' AutoencoderKLQwenImage, and AutoencoderKLQwenImage21, which has a
shortcut around each level), whole or in exact tiles.

Before the first frame of a video there is nothing: of a causal convolution's kernel only the last slice in time meets
an image, and what resamples time is not called. So an image is computed in two dimensions, with a third of the
products, and without the maps that diffusers keeps for the next frame. Norms work on each pixel alone, so tiles need
only the border that a convolution reads; the middle with its attention runs as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.models.autoencoders.tiling import SMALLEST_TILE, Prepare, Tiles

FRAME, VIDEO_AXES = 2, 5


def decode_frame(vae: Any, own: Tensor, tile: int = 0, few_tiles: bool = False) -> Tensor:
    """`own` [B,C,1,h,w] as the VAE takes it, to images [B,3,H,W] between -1 and 1. `tile`: latents a side of a tile at
    the size of the image, 0: whole. `few_tiles`: as `tiling.decode_tiled`."""
    decoder = vae.decoder
    whole = _Whole()
    x = whole.convolve(own.squeeze(FRAME), _flat(vae.post_quant_conv))
    x = _middle(decoder.mid_block, whole.convolve(x, _flat(decoder.conv_in)))
    scale = 2 ** sum(bool(_upsamplers(block)) for block in decoder.up_blocks)
    space, x = _placed(x, own.device, tile, scale, few_tiles)
    for block in decoder.up_blocks:
        around = getattr(block, "avg_shortcut", None)
        before = _data(x).clone() if around is not None and isinstance(space, Tiles) else _data(x)
        for resnet in block.resnets:
            x = _residual(space, x, resnet)
        for upsampler in _upsamplers(block):
            onto = None if around is None else space.of(_doubled(before, around))
            x = space.convolve(x, upsampler.resample[1], enlarge=True, onto=onto)
    x = space.convolve(x, _flat(decoder.conv_out), _norm(decoder.norm_out))
    return _data(x).to(own.device).clamp(-1, 1)


def encode_frame(vae: Any, images: Tensor, tile: int = 0, few_tiles: bool = False) -> Tensor:
    """Images [B,3,H,W] to the VAE's moments [B,2C,1,h,w]: mean and log variance, as the VAE has them. `tile` and
    `few_tiles` as above."""
    encoder = vae.encoder
    scale = 2 ** sum(hasattr(getattr(layer, "downsampler", layer), "resample") for layer in encoder.down_blocks)
    space, x = _placed(images, images.device, tile, scale, few_tiles, is_image=True)
    x = space.convolve(x, _flat(encoder.conv_in))
    for layer in encoder.down_blocks:
        if hasattr(layer, "avg_shortcut"):
            x = _shrunk(space, x, layer, images.device)
        elif hasattr(layer, "resample"):
            x = space.convolve(x, layer.resample[1], before=0)
        elif hasattr(layer, "conv1"):
            x = _residual(space, x, layer)
        else:  # attention, which sees the whole map
            x = space.of(_attended(layer, _data(x).to(images.device)))
    whole = _Whole()
    middle = _middle(encoder.mid_block, _data(x).to(images.device))
    moments = whole.convolve(middle, _flat(encoder.conv_out), _norm(encoder.norm_out))
    return whole.convolve(moments, _flat(vae.quant_conv)).unsqueeze(FRAME)


@dataclass(frozen=True)
class _Flat:
    """A causal convolution for one frame: the last slice of its kernel in time."""

    kernel_size: tuple[int, int]
    padding: tuple[int, int]
    padding_mode: str
    out_channels: int
    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, int] = (1, 1)


def _flat(convolution: Any) -> _Flat:
    height, width = convolution.kernel_size[-2:]
    return _Flat(
        (height, width),
        (height // 2, width // 2),
        convolution.padding_mode,
        convolution.out_channels,
        convolution.weight[:, :, -1] if convolution.weight.ndim == VIDEO_AXES else convolution.weight,
        convolution.bias,
    )


class _Whole:
    """The interface of `Tiles`, for maps [B,C,H,W] in one piece."""

    @staticmethod
    def of(x: Tensor) -> Tensor:
        return x

    def convolve(
        self,
        x: Tensor,
        convolution: Any,
        prepare: Prepare | None = None,
        enlarge: bool = False,
        before: int | None = None,
        onto: Tensor | None = None,
        shortcut: Any = None,
    ) -> Tensor:
        x = x if prepare is None else prepare(x)
        if enlarge:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        size, stride = int(convolution.kernel_size[0]), int(convolution.stride[0])
        first = int(convolution.padding[0]) if before is None else before
        after = size - stride - first
        mode = "circular" if convolution.padding_mode == "circular" else "constant"
        if first or after:
            x = F.pad(x, (first, after, first, after), mode=mode)
        x = F.conv2d(x, convolution.weight, convolution.bias, stride)
        if onto is None:
            return x
        return x + (onto if shortcut is None else F.conv2d(onto, shortcut.weight, shortcut.bias))


def _placed(
    x: Tensor, device: torch.device, tile: int, scale: int, few_tiles: bool, is_image: bool = False
) -> tuple[Any, Any]:
    """Return what computes, and a map for it. Whatever is no larger than a tile is computed as a whole."""
    side = max(tile, SMALLEST_TILE)
    if not tile or max(x.shape[-2:]) <= (side * scale if is_image else side):
        return _Whole(), x
    tiles = Tiles(device, side * scale, few_tiles)
    return tiles, tiles.of(x)


def _data(x: Any) -> Tensor:
    """The tensor of a map."""
    found: Tensor = x if isinstance(x, Tensor) else x.data
    return found


def _residual(space: Any, x: Any, block: Any) -> Any:
    shortcut = _flat(block.conv_shortcut) if hasattr(block.conv_shortcut, "weight") else None
    first = space.convolve(x, _flat(block.conv1), _norm(block.norm1))
    return space.convolve(first, _flat(block.conv2), _norm(block.norm2), onto=x, shortcut=shortcut)


def _upsamplers(block: Any) -> Any:
    """Return what enlarges at the end of a level: no module or one."""
    if hasattr(block, "upsampler"):
        return () if block.upsampler is None else (block.upsampler,)
    return block.upsamplers or ()


def _doubled(x: Tensor, around: Any) -> Tensor:
    """The shortcut around a level that doubles the size: each channel stands for several of the result, of which an
    image has those of the last of `factor_t` frames."""
    places = around.factor_s**2
    numbers = torch.arange(around.out_channels, device=x.device)[:, None] * around.factor + around.factor - places
    channels = (numbers + torch.arange(places, device=x.device)) // around.repeats
    rows, columns = (side * around.factor_s for side in x.shape[-2:])
    result = x.new_empty(len(x), around.out_channels, rows, columns)
    for place in range(places):
        y, column = divmod(place, around.factor_s)
        result[:, :, y :: around.factor_s, column :: around.factor_s] = x[:, channels[:, place]]
    return result


def _shrunk(space: Any, x: Any, block: Any, device: torch.device) -> Any:
    """A level of the encoder and the shortcut around it: means over neighbours and channels, and over frames, of which
    an image has the last."""
    around, data = block.avg_shortcut, _data(x)
    small = F.pixel_unshuffle(data, around.factor_s)
    parts = small.reshape(len(small), data.shape[1], 1, -1, *small.shape[-2:])
    parts = F.pad(parts, (0, 0, 0, 0, 0, 0, around.factor_t - 1, 0))
    means = parts.reshape(len(small), around.out_channels, around.group_size, *small.shape[-2:]).mean(2)
    for resnet in block.resnets:
        x = _residual(space, x, resnet)
    if block.downsampler is None:
        return space.of((_data(x) + means).to(device))
    return space.convolve(x, block.downsampler.resample[1], before=0, onto=space.of(means))


def _middle(block: Any, x: Tensor) -> Tensor:
    whole = _Whole()
    x = _residual(whole, x, block.resnets[0])
    for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
        x = _residual(whole, _attended(attention, x), resnet)
    return x


def _attended(attention: Any, x: Tensor) -> Tensor:
    found: Tensor = attention(x.unsqueeze(FRAME)).squeeze(FRAME)
    return found


def _norm(norm: Any) -> Prepare:
    """Over the channels of each pixel, then SiLU."""
    gamma = norm.gamma.reshape(-1, 1, 1)

    def prepare(part: Tensor) -> Tensor:
        normed = F.normalize(part.float(), dim=1).to(part.dtype)
        return F.silu(normed * norm.scale * gamma)

    return prepare
