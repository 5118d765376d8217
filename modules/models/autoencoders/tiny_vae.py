"""Tiny autoencoders (TAESD, Ollin Boer Bohan 2023): stand-ins for a VAE's decoder and encoder that cost a fraction.

They work on scaled latents, as the UNet has them, and are plain rows of convolutions, so that sizes follow from the
tensors and tiles with a border give exactly the whole image.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from modules.errors import CheckpointError, NumericalError
from modules.models.autoencoders.running import VaeRunner
from modules.models.autoencoders.tiny_vae_files import DECODER, ENCODER
from modules.models.files.tensor_file import TensorEntry
from modules.models.files.tensor_source import TensorSource, open_tensors
from modules.models.libraries import library_name
from modules.models.names.component import on_meta

PREFIXES = {
    DECODER: ("decoder.layers.", "taesd_decoder.", ""),
    ENCODER: ("encoder.layers.", "taesd_encoder.", ""),
}
"""Before a layer's number: in one-file diffusers models, in files with both halves, and in files of one half."""
VAE_PARTS = "diffusers.models.autoencoders.vae"
_LAYER = re.compile(r"(\d+)\.(.+)")
LISTED_NAMES = 3


@dataclass(frozen=True)
class TinySizes:
    """The sizes of one half, from its tensors. Stages are counted from its input; each holds some residual blocks."""

    in_channels: int
    out_channels: int
    widths: tuple[int, ...]
    blocks: tuple[int, ...]
    pools: tuple[int, ...] = ()  # the layers whose blocks add a pool of their input

    @property
    def factor(self) -> int:
        """Pixels a latent stands for, along one side."""
        return 1 << (len(self.blocks) - 1)

    def border(self, half: str) -> int:
        """Latents around a tile that its pixels depend on: each convolution adds one at its own resolution."""
        finest_last = self.blocks if half == DECODER else tuple(reversed(self.blocks))
        reach: float = 1.0 + sum((3 * count + 1) / 2**level for level, count in enumerate(finest_last))
        return math.ceil(reach) + 1


class TinyHalf:
    """A decoder or an encoder, on the CPU in the file's dtype until it is first run."""

    def __init__(self, half: str, module: nn.Module, sizes: TinySizes, name: str, patch: int = 1) -> None:
        self.half = half
        self.patch = patch  # latents per side that the model's own autoencoder packs into channels
        self.module = module
        self.sizes = sizes
        self.name = name  # of the file

    def run(self, x: Tensor, runner: VaeRunner) -> Tensor:
        """Scaled latents [B,C,h,w] to images [B,3,H,W] in about -1..1, or images to scaled latents; float32.

        Device, dtype and tiles are those of `runner`, so that what memory recovery does to the VAE reaches this too.
        Raises `NumericalError` for NaN.
        """
        self.module.to(runner.device, runner.dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.to(runner.device, runner.dtype)
        tile = runner.rules.tile_px // self.sizes.factor
        result = self.compute(x, tile)
        if not torch.isfinite(result).all():
            raise NumericalError(f"{self.name} made NaN. Choose 'Full' as VAE type for {self.half[:2]}code.")
        return result.float().contiguous()

    def compute(self, x: Tensor, tile: int = 0) -> Tensor:
        """Run the model on its device and in its dtype; in tiles of `tile` latents a side, each with the border that it
        depends on, or in one piece: a group norm depends on the whole image."""
        factor, border = self.sizes.factor, self.sizes.border(self.half)
        enters, leaves = (1, factor) if self.half == DECODER else (factor, 1)
        height, width = (side // enters for side in x.shape[-2:])
        if not tile or max(height, width) <= tile or self.sizes.pools or self.patch > 1 or self._wraps():
            return self._whole(x)
        result = x.new_empty(x.shape[0], self.sizes.out_channels, height * leaves, width * leaves)
        for top, y in _spans(height, tile, border):
            for left, z in _spans(width, tile, border):
                window = x[:, :, y.start * enters : y.stop * enters, z.start * enters : z.stop * enters]
                target = result[:, :, top.start * leaves : top.stop * leaves, left.start * leaves : left.stop * leaves]
                skip_y, skip_z = (top.start - y.start) * leaves, (left.start - z.start) * leaves
                part = self._whole(window)[:, :, skip_y:, skip_z:]
                target.copy_(part[:, :, : target.shape[2], : target.shape[3]])
        return result

    def _wraps(self) -> bool:
        """Whether images are to tile: a border then lies at the other side of the image, which needs the whole."""
        return any(isinstance(m, nn.Conv2d) and m.padding_mode == "circular" for m in self.module.modules())

    def _whole(self, x: Tensor) -> Tensor:
        x = functional.pixel_shuffle(x, self.patch) if self.half == DECODER else x
        result: Tensor = self.module(x)
        return result if self.half == DECODER else functional.pixel_unshuffle(result, self.patch)


@dataclass
class TinyVae:
    """The tiny halves that a job uses instead of its model's VAE; None: the VAE itself."""

    decoder: TinyHalf | None = None
    encoder: TinyHalf | None = None


def read_tiny(path: Path, half: str, latent_channels: int, factor: int) -> TinyHalf:
    """Read one half ("decoder" or "encoder") from a file of it or of both.

    Known are the original names (`1.weight`, `3.conv.0.weight` ...), those with `taesd_decoder.` before them, and the
    one-file form of diffusers. Raises `CheckpointError` for a file that is damaged, is no such model, or is made for
    latents of another kind than those with `latent_channels` channels and `factor` pixels a side.
    """
    with open_tensors(path) as file:
        tiny, names = _on_meta(file, half, latent_channels, factor)
        state = {f"layers.{name}": file.read(original) for name, original in names.items()}
    tiny.module.load_state_dict(state, assign=True)
    tiny.module.requires_grad_(False)
    return tiny


def build_meta_tiny(path: Path, half: str, latent_channels: int, factor: int) -> TinyHalf:
    """Build a half without weights, on the meta device: only the header of a safetensors file is read."""
    with open_tensors(path) as file:
        return _on_meta(file, half, latent_channels, factor)[0]


def _on_meta(file: TensorSource, half: str, latent_channels: int, factor: int) -> tuple[TinyHalf, dict[str, str]]:
    """A half on the meta device, and the file's name of each of its tensors, by ours."""
    path, names = file.path, _layer_names(file.entries, half)
    try:
        sizes = sizes_of({ours: file.entries[name] for ours, name in names.items()}, half)
        with on_meta():
            module = build_tiny(sizes, half)
    except (ValueError, KeyError, IndexError) as error:
        raise CheckpointError(f"{path.name}: is no tiny {half} of the TAESD kind: {error}.") from error
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {f"layers.{name}": file.entries[original].shape for name, original in names.items()}
    different = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if different:
        listed = ", ".join(different[:LISTED_NAMES])
        raise CheckpointError(
            f"{path.name}: is no tiny {half} of the TAESD kind: {len(different)} tensors are missing, surplus or of "
            f"another shape: {listed}."
        )
    channels = sizes.in_channels if half == DECODER else sizes.out_channels
    patch = max(factor // sizes.factor, 1)
    if (channels * patch**2, sizes.factor * patch) != (latent_channels, factor):
        raise CheckpointError(
            f"{path.name}: is for latents of {channels} channels that stand for {sizes.factor} pixels a side; this "
            f"model's have {latent_channels} and {factor}. Use the file of this model's family."
        )
    return TinyHalf(half, module.eval(), sizes, path.name, patch), names


def build_tiny(sizes: TinySizes, half: str) -> nn.Module:
    """The model of these sizes, by diffusers' classes; what it takes and gives is in -1..1."""
    parts: dict[str, Any] = {"num_blocks": sizes.blocks, "block_out_channels": sizes.widths, "act_fn": "relu"}
    if half == DECODER:
        parts |= {"upsampling_scaling_factor": 2, "upsample_fn": "nearest"}
    made = library_name(f"{VAE_PARTS}.{'EncoderTiny' if half == ENCODER else 'DecoderTiny'}")
    module: nn.Module = made(sizes.in_channels, sizes.out_channels, **parts)
    for number in sizes.pools:
        layers = module.get_submodule("layers")
        assert isinstance(layers, nn.Sequential)
        layers[number] = PooledBlock(layers[number])
    return module


class PooledBlock(nn.Module):
    """A residual block that first adds what 1x1 convolutions and a group norm make of its input (TAEF2)."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.conv, self.skip, self.fuse = map(block.get_submodule, ("conv", "skip", "fuse"))
        width = next(self.conv.parameters()).shape[1]
        inner = 4 * width
        self.pool = nn.Sequential(
            nn.Conv2d(width, inner, 1, bias=False),
            nn.GroupNorm(4, inner),
            nn.ReLU(),
            nn.Conv2d(inner, width, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block for features [B, C, h, w]."""
        x = x + self.pool(x)
        result: Tensor = self.fuse(self.conv(x) + self.skip(x))
        return result


def original_names(module: nn.Module, half: str) -> dict[str, Tensor]:
    """The tensors of a model under the names of the original files, where a decoder's first layer is a clamp."""
    shift = 1 if half == DECODER else 0
    named = {}
    for name, tensor in module.state_dict().items():
        number, rest = name.removeprefix("layers.").split(".", 1)
        named[f"{int(number) + shift}.{rest}"] = tensor
    return named


def sizes_of(entries: Mapping[str, TensorEntry], half: str) -> TinySizes:
    """The sizes of a half, from its tensors named "0.weight", "2.conv.0.weight" ... Raises `ValueError` for others."""
    layers = sorted({int(name.split(".", 1)[0]) for name in entries})
    convolutions = [number for number in layers if f"{number}.weight" in entries]
    blocks = {number for number in layers if f"{number}.conv.0.weight" in entries}
    if len(convolutions) < 2 or set(layers) != blocks.union(convolutions):
        raise ValueError("its layers are not convolutions with residual blocks between them")
    spans = list(itertools.pairwise(convolutions))
    first, last = (entries[f"{number}.weight"].shape for number in (convolutions[0], convolutions[-1]))
    stage_ends = convolutions[1:] if half == DECODER else convolutions[:-1]
    axis = 1 if half == DECODER else 0
    return TinySizes(
        in_channels=first[1],
        out_channels=last[0],
        widths=tuple(entries[f"{number}.weight"].shape[axis] for number in stage_ends),
        blocks=tuple(sum(begin < number < end for number in blocks) for begin, end in spans),
        pools=tuple(number for number in layers if f"{number}.pool.0.weight" in entries),
    )


def _spans(length: int, tile: int, border: int) -> Iterator[tuple[slice, slice]]:
    """The tiles of a side, each with the part that must be read for it."""
    for start in range(0, length, tile):
        stop = min(start + tile, length)
        yield slice(start, stop), slice(max(start - border, 0), min(stop + border, length))


def _layer_names(entries: Iterable[str], half: str) -> dict[str, str]:
    """Our name of each tensor of the half ("0.weight": the first convolution has number 0) and the file's."""
    for prefix in PREFIXES[half]:
        found = {}
        for name in entries:
            match = _LAYER.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
            if match is not None:
                found[int(match[1]), match[2]] = name
        if found:
            shift = min(number for number, _ in found)  # of a decoder, the original's layer 0 has no tensors
            return {f"{number - shift}.{rest}": name for (number, rest), name in found.items()}
    return {}
