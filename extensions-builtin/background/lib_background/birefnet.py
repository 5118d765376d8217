"""BiRefNet (Zheng et al. 2024, arXiv:2401.03407), of which RMBG-2.0 is one: Swin in two sizes of the image, and a
decoder that sees the image again at each level. Layers are named as in its authors' files, but for Swin, which is the
class of transformers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_background.deformable import DeformableConv
from lib_background.nested_u import Shapes
from modules.memory.hook_chain import HookOrder, register_hook
from modules.models.names.row_map import RowMap, Source

SIGN = "squeeze_module.0.conv_in.weight"
KERNELS = (1, 3, 7)
TOKENS_AT_ONCE = 8192
FUSED = re.compile(r"^bb\.(layers\.\d+\.blocks\.\d+)\.attn\.qkv\.(weight|bias)$")
RENAMED = (
    (re.compile(r"^bb\.patch_embed\.proj\."), "bb.swin.embeddings.patch_embeddings.projection."),
    (re.compile(r"^bb\.patch_embed\.norm\."), "bb.swin.embeddings.norm."),
    (re.compile(r"^bb\.norm(\d)\."), lambda match: f"bb.hidden_states_norms.stage{int(match[1]) + 1}."),
    (re.compile(r"^bb\.layers\."), "bb.swin.encoder.layers."),
    (re.compile(r"(\.blocks\.\d+)\.norm1\."), r"\1.layernorm_before."),
    (re.compile(r"(\.blocks\.\d+)\.norm2\."), r"\1.layernorm_after."),
    (re.compile(r"(\.blocks\.\d+)\.attn\.proj\."), r"\1.attention.o_proj."),
    (re.compile(r"\.attn\.(relative_position_bias)_table$"), r".attention.\1.\1_table"),
)
TRAINING_ONLY = re.compile(r"relative_position_index$|\.gdt_convs_pred_\d\.|\.conv_ms_spvn_\d\.|^cls_head\.")
"""Tensors that files hold and an image does not need."""


class Aspp(nn.Module):
    """Deformable convolutions of several sizes, and the mean of all, side by side."""

    def __init__(self, shapes: Shapes, prefix: str) -> None:
        super().__init__()
        out, joined = shapes[f"{prefix}conv1.weight"][:2]
        inner, into = shapes[f"{prefix}global_avg_pool.1.weight"][:2]
        self.aspp1 = AsppPart(into, inner, 1)
        self.aspp_deforms = nn.ModuleList(AsppPart(into, inner, side) for side in KERNELS)
        pool, conv = nn.AdaptiveAvgPool2d(1), nn.Conv2d(into, inner, 1, bias=False)
        self.global_avg_pool = nn.Sequential(pool, conv, nn.BatchNorm2d(inner), nn.ReLU())
        self.conv1, self.bn1 = nn.Conv2d(joined, out, 1, bias=False), nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.aspp1, *self.aspp_deforms, self.global_avg_pool)
        weights = self.conv1.weight.chunk(len(parts), dim=1)  # one after the other: all at once are ten times as much
        found = sum(F.conv2d(part(x), weight.to(x.dtype)) for part, weight in zip(parts, weights, strict=True))
        return F.relu(self.bn1(found))


class AsppPart(nn.Module):
    """One of the convolutions."""

    def __init__(self, into: int, out: int, side: int) -> None:
        super().__init__()
        self.atrous_conv, self.bn = DeformableConv(into, out, side), nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.atrous_conv(x)))


class DecoderBlock(nn.Module):
    """Narrow, look around, widen."""

    def __init__(self, shapes: Shapes, prefix: str) -> None:
        super().__init__()
        self.conv_in = conv_of(shapes, f"{prefix}conv_in")
        self.bn_in = nn.BatchNorm2d(self.conv_in.out_channels)
        self.dec_att = Aspp(shapes, f"{prefix}dec_att.")
        self.conv_out = conv_of(shapes, f"{prefix}conv_out")
        self.bn_out = nn.BatchNorm2d(self.conv_out.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.bn_out(self.conv_out(self.dec_att(F.relu(self.bn_in(self.conv_in(x))))))
        return found


class TwoConvs(nn.Module):
    """Two convolutions."""

    def __init__(self, shapes: Shapes, prefix: str) -> None:
        super().__init__()
        self.conv1, self.conv_out = (conv_of(shapes, f"{prefix}{name}") for name in ("conv1", "conv_out"))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv_out(self.conv1(x))
        return found


class Lateral(nn.Module):
    """A level of Swin as wide as the decoder is there."""

    def __init__(self, shapes: Shapes, prefix: str) -> None:
        super().__init__()
        self.conv = conv_of(shapes, f"{prefix}conv")

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(x)
        return found


class Decoder(nn.Module):
    """From the coarsest level to the image's size."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        for level in range(1, 6):
            setattr(self, f"ipt_blk{level}", TwoConvs(shapes, f"decoder.ipt_blk{level}."))
        for level in range(1, 5):
            setattr(self, f"decoder_block{level}", DecoderBlock(shapes, f"decoder.decoder_block{level}."))
        for level in range(2, 5):
            setattr(self, f"lateral_block{level}", Lateral(shapes, f"decoder.lateral_block{level}."))
            norm = nn.BatchNorm2d(shapes[f"decoder.gdt_convs_{level}.1.weight"][0])
            gate = (conv_of(shapes, f"decoder.gdt_convs_{level}.0"), norm, nn.ReLU())
            setattr(self, f"gdt_convs_{level}", nn.Sequential(*gate))
            attention = conv_of(shapes, f"decoder.gdt_convs_attn_{level}.0")
            setattr(self, f"gdt_convs_attn_{level}", nn.Sequential(attention))
        self.conv_out1 = nn.Sequential(conv_of(shapes, "decoder.conv_out1.0"))

    def forward(self, image: Tensor, levels: list[Tensor]) -> Tensor:
        """An image [1,3,H,W] and its levels, the finest first, to [1,1,H,W]."""
        x = levels.pop()
        for level in range(4, 0, -1):
            x = getattr(self, f"decoder_block{level}")(torch.cat([x, self._seen(x, image, level + 1)], dim=1))
            if level == 1:
                break
            x = x * getattr(self, f"gdt_convs_attn_{level}")(getattr(self, f"gdt_convs_{level}")(x)).sigmoid()
            finer = levels.pop()
            x = scaled(x, finer.shape[2:]) + getattr(self, f"lateral_block{level}")(finer)
        # The last layer sees single pixels, so that it may come before what enlarges: a tenth of the memory.
        last: Any = self.conv_out1[0]
        own, beside = last.weight.to(x.dtype).split((x.shape[1], last.in_channels - x.shape[1]), dim=1)
        seen = F.conv2d(self._seen(image, image, 1), beside, last.bias.to(x.dtype))
        found: Tensor = scaled(F.conv2d(x, own), image.shape[2:]) + seen
        return found

    def _seen(self, x: Tensor, image: Tensor, level: int) -> Tensor:
        """The image's pixels for a level, as channels: those of each part of the image that has the level's size."""
        _, channels, height, width = image.shape
        down, across = height // x.shape[2], width // x.shape[3]
        parts = image.reshape(1, channels, down, x.shape[2], across, x.shape[3]).permute(0, 1, 2, 4, 3, 5)
        found: Tensor = getattr(self, f"ipt_blk{level}")(parts.reshape(1, channels * down * across, *x.shape[2:]))
        return found


class BiRefNet(nn.Module):
    """The whole network; sizes from the tensors of a file."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        from transformers import SwinBackbone

        self.bb = SwinBackbone(swin_config(shapes))
        self.bb.swin.layernorm = nn.Identity()  # behind the stages, which have norms of their own
        for layer in self.bb.modules():
            if type(layer).__name__ == "SwinMLP":
                register_hook(layer, in_parts, HookOrder.OBSERVE)
        self.squeeze_module = nn.Sequential(DecoderBlock(shapes, "squeeze_module.0."))
        self.decoder = Decoder(shapes)

    def forward(self, image: Tensor) -> Tensor:
        """A normed image [1,3,H,W], sides multiples of 32, to how likely each pixel is of the foreground [1,1,H,W],
        before a sigmoid."""
        half = scaled(image, [side // 2 for side in image.shape[2:]])
        levels = [
            torch.cat([whole, scaled(small, whole.shape[2:])], dim=1)
            for whole, small in zip(self._features(image), self._features(half), strict=True)
        ]
        size = levels[-1].shape[2:]
        levels[-1] = self.squeeze_module(torch.cat([scaled(level, size) for level in levels], dim=1))
        found: Tensor = self.decoder(image, levels)
        return found

    def _features(self, image: Tensor) -> list[Tensor]:
        return list(self.bb(image).feature_maps)


def in_parts(module: nn.Module, inner: Callable[[Tensor], Tensor], /, x: Tensor) -> Tensor:
    """A feed-forward of tokens [N,T,C], some at a time: it widens them four times."""
    return torch.cat([inner(part) for part in torch.split(x, TOKENS_AT_ONCE, dim=1)], dim=1)


def scaled(x: Tensor, size: Any) -> Tensor:
    """Values of another height and width, with the corners in their places."""
    if tuple(x.shape[2:]) == tuple(size):
        return x
    return F.interpolate(x, size=list(size), mode="bilinear", align_corners=True)


def conv_of(shapes: Shapes, name: str) -> nn.Conv2d:
    """A convolution of the sizes in a file, which keeps height and width."""
    out, into, side, _ = shapes[f"{name}.weight"]
    return nn.Conv2d(into, out, side, padding=side // 2)


def swin_config(shapes: Shapes) -> Any:
    """Return the sizes of a file's Swin: `SwinConfig`."""
    from transformers import SwinConfig

    tables = {key: shape for key, shape in shapes.items() if key.endswith("relative_position_bias_table")}
    stages = 1 + max(int(key.split(".")[2]) for key in tables)
    depths = [sum(key.startswith(f"bb.layers.{stage}.") for key in tables) for stage in range(stages)]
    first = [tables[f"bb.layers.{stage}.blocks.0.attn.relative_position_bias_table"] for stage in range(stages)]
    return SwinConfig(
        embed_dim=shapes["bb.patch_embed.proj.weight"][0],
        depths=depths,
        num_heads=[shape[1] for shape in first],
        window_size=(math.isqrt(first[0][0]) + 1) // 2,
        drop_path_rate=0.0,
        out_features=[f"stage{stage + 1}" for stage in range(stages)],
        attn_implementation="sdpa",
    )


def fill_indices(net: nn.Module, device: torch.device) -> None:
    """Give Swin's layers the numbers of their relative positions, which no file needs to hold."""
    from transformers.models.swin.modeling_swin import SwinRelativePositionBias

    for module in list(net.modules()):
        if isinstance(module, SwinRelativePositionBias):
            with torch.device(device):
                module.relative_position_index = SwinRelativePositionBias(1, module.window_size).relative_position_index


def rows_of(shapes: Shapes, prefix: str) -> RowMap:
    """Which rows of which tensors of a file, whose names have a prefix, are which of the network's parameters."""
    sources: dict[str, Source] = {}
    for key, shape in shapes.items():
        if TRAINING_ONLY.search(key):
            continue
        fused = FUSED.match(key)
        if fused is None:
            ours = key
            for pattern, word in RENAMED:
                ours = pattern.sub(word, ours)
            sources[ours] = Source(f"{prefix}{key}")
            continue
        width = shape[0] // 3
        for place, letter in enumerate("qkv"):
            ours = f"bb.swin.encoder.{fused[1]}.attention.{letter}_proj.{fused[2]}"
            sources[ours] = Source(f"{prefix}{key}", ((place * width, (place + 1) * width),))
    return RowMap(sources)
