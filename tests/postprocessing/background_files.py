"""Tiny files of networks that remove backgrounds, with the names and the form of their authors' files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

HEIGHTS = {"stage1": 7, "stage2": 6, "stage3": 5, "stage4": 4, "stage5": 4, "stage6": 4}
HEIGHTS |= {"stage5d": 4, "stage4d": 4, "stage3d": 5, "stage2d": 6, "stage1d": 7}
CHANNELS, HEADS, DEPTHS, WINDOW = 8, (1, 2, 4, 8), (2, 1, 2, 1), 4


@dataclass(frozen=True)
class SwinSizes:
    """Sizes of BiRefNet: of its Swin, and how wide its decoder is inside."""

    channels: int = CHANNELS
    heads: tuple[int, ...] = HEADS
    depths: tuple[int, ...] = DEPTHS
    window: int = WINDOW
    inner: int = 6
    wide: int = 4


KERNELS = (1, 3, 7)


class Drawn(dict[str, Tensor]):
    """Random tensors by name."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = torch.Generator().manual_seed(seed)

    def conv(self, name: str, out: int, into: int, side: int, bias: bool = True, scale: float = 1.0) -> None:
        deviation = scale * (2 / (into * side**2)) ** 0.5
        self[f"{name}.weight"] = torch.randn(out, into, side, side, generator=self._random) * deviation
        if bias:
            self[f"{name}.bias"] = torch.randn(out, generator=self._random) * 0.1

    def norm(self, name: str, width: int, is_batch: bool = True) -> None:
        self[f"{name}.weight"] = 1 + 0.1 * torch.randn(width, generator=self._random)
        self[f"{name}.bias"] = torch.randn(width, generator=self._random) * 0.1
        if is_batch:
            self[f"{name}.running_mean"] = torch.randn(width, generator=self._random) * 0.1
            self[f"{name}.running_var"] = 1 + 0.2 * torch.rand(width, generator=self._random)
            self[f"{name}.num_batches_tracked"] = torch.tensor(3)

    def linear(self, name: str, out: int, into: int, bias: bool = True) -> None:
        self[f"{name}.weight"] = torch.randn(out, into, generator=self._random) / into**0.5
        if bias:
            self[f"{name}.bias"] = torch.randn(out, generator=self._random) * 0.1


def nested_u(
    is_isnet: bool, seed: int = 1, widths: tuple[int, ...] = (6,) * 6, middles: tuple[int, ...] = (4,) * 6
) -> Mapping[str, Tensor]:
    """U-2-Net, or IS-Net, whose first convolution halves the image and which has no last one. `widths` and `middles`
    are those of its six levels."""
    found = Drawn(seed)
    if is_isnet:
        found.conv("conv_in", widths[0], 3, 3)
    for name, height in HEIGHTS.items():
        level = int(name[5]) - 1
        if name.endswith("d"):  # as wide as the level above
            into, width, middle = 2 * widths[level], widths[max(level - 1, 0)], middles[level] // (1 + (level == 0))
        else:
            into, width, middle = widths[level - 1], widths[level], middles[level]
            into = into if level else widths[0] if is_isnet else 3
        layers = [("in", into, width), ("1", width, middle)]
        layers += [(str(level), middle, middle) for level in range(2, height + 1)]
        layers += [(f"{level}d", 2 * middle, width if level == 1 else middle) for level in range(height - 1, 0, -1)]
        for layer, channels, out in layers:
            found.conv(f"{name}.rebnconv{layer}.conv_s1", out, channels, 3)
            found.norm(f"{name}.rebnconv{layer}.bn_s1", out)
    for level in range(1, 7):
        found.conv(f"side{level}", 1, widths[level - 1] if level == 6 else widths[max(level - 2, 0)], 3)
    if not is_isnet:
        found.conv("outconv", 1, 6, 1)
    return found


def birefnet(seed: int = 2, sizes: SwinSizes | None = None) -> Mapping[str, Tensor]:
    """BiRefNet, with Swin of a few channels or of these sizes."""
    found, sizes = Drawn(seed), sizes or SwinSizes()
    channels, window = sizes.channels, sizes.window
    found.conv("bb.patch_embed.proj", channels, 3, 4)
    found.norm("bb.patch_embed.norm", channels, is_batch=False)
    for stage, (depth, heads) in enumerate(zip(sizes.depths, sizes.heads, strict=True)):
        width = channels * 2**stage
        for number in range(depth):
            block = f"bb.layers.{stage}.blocks.{number}"
            for norm in ("norm1", "norm2"):
                found.norm(f"{block}.{norm}", width, is_batch=False)
            table = torch.randn((2 * window - 1) ** 2, heads, generator=torch.Generator().manual_seed(seed + number))
            found[f"{block}.attn.relative_position_bias_table"] = table
            found[f"{block}.attn.relative_position_index"] = torch.zeros(window**2, window**2, dtype=torch.int64)
            for layer, out, into in (
                ("attn.qkv", 3 * width, width),
                ("attn.proj", width, width),
                ("mlp.fc1", 4 * width, width),
                ("mlp.fc2", width, 4 * width),
            ):
                found.linear(f"{block}.{layer}", out, into)
        if stage < len(sizes.depths) - 1:
            found.norm(f"bb.layers.{stage}.downsample.norm", 4 * width, is_batch=False)
            found.linear(f"bb.layers.{stage}.downsample.reduction", 2 * width, 4 * width, bias=False)
        found.norm(f"bb.norm{stage}", width, is_batch=False)
    widths = [2 * channels * 2**stage for stage in (3, 2, 1, 0)]
    inner, wide = sizes.inner, sizes.wide
    _decoder_block(found, "squeeze_module.0", sum(widths), widths[0], inner, wide)
    beside = [width // 8 for width in widths]
    for level, grid, out in ((5, 32, 0), (4, 16, 0), (3, 8, 1), (2, 4, 2), (1, 1, 3)):
        found.conv(f"decoder.ipt_blk{level}.conv1", 5, 3 * grid**2, 3)
        found.conv(f"decoder.ipt_blk{level}.conv_out", beside[out], 5, 3)
    for place, level in enumerate((4, 3, 2, 1)):
        into = widths[place] + beside[max(place - 1, 0)]
        out = widths[min(place + 1, 3)] // (1 + (level == 1))
        _decoder_block(found, f"decoder.decoder_block{level}", into, out, inner, wide)
        if level > 1:
            width = widths[place + 1]
            found.conv(f"decoder.lateral_block{level}.conv", width, width, 1)
            found.conv(f"decoder.gdt_convs_{level}.0", 4, width, 3)
            found.norm(f"decoder.gdt_convs_{level}.1", 4)
            found.conv(f"decoder.gdt_convs_attn_{level}.0", 1, 4, 1)
            found.conv(f"decoder.gdt_convs_pred_{level}.0", 1, 4, 1)  # of training, as the next
            found.conv(f"decoder.conv_ms_spvn_{level}", 1, width, 1)
    found.conv("decoder.conv_out1.0", 1, widths[3] // 2 + beside[3], 1)
    return found


def _decoder_block(found: Drawn, name: str, into: int, out: int, inner: int, wide: int) -> None:
    found.conv(f"{name}.conv_in", inner, into, 3)
    found.norm(f"{name}.bn_in", inner)
    for part, side in (("aspp1", 1), *((f"aspp_deforms.{place}", side) for place, side in enumerate(KERNELS))):
        conv = f"{name}.dec_att.{part}.atrous_conv"
        found.conv(f"{conv}.offset_conv", 2 * side**2, inner, side)
        found.conv(f"{conv}.modulator_conv", side**2, inner, side)
        found.conv(f"{conv}.regular_conv", wide, inner, side, bias=False)
        found.norm(f"{name}.dec_att.{part}.bn", wide)
    found.conv(f"{name}.dec_att.global_avg_pool.1", wide, inner, 1, bias=False)
    found.norm(f"{name}.dec_att.global_avg_pool.2", wide)
    found.conv(f"{name}.dec_att.conv1", inner, 5 * wide, 1, bias=False)
    found.norm(f"{name}.dec_att.bn1", inner)
    found.conv(f"{name}.conv_out", out, inner, 3)
    found.norm(f"{name}.bn_out", out)
