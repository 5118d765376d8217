"""The autoencoder of Qwen-Image and Wan 2.1 (arXiv:2503.20314): a video VAE that is given one frame, whose latents are
normalised by a mean and a standard deviation of each channel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.models.autoencoders.autoencoder import MISSING_HINT, PREFIX, Autoencoder, AutoencoderType, PreviewFactors
from modules.models.autoencoders.kl import SETTINGS, mean_and_std, preview_of_yaml
from modules.models.names.diffusers_settings import compare, settings_of, wrong

if TYPE_CHECKING:
    from torch import Tensor

    from modules.models.names.component import Component, Header
    from modules.models.names.folder_layout import Names
    from modules.models.names.keymap import KeyMap, ModulePair

FRAME = 2  # the axis of time
RESIDUAL = {
    "residual.0": "norm1",
    "residual.2": "conv1",
    "residual.3": "norm2",
    "residual.6": "conv2",
    "shortcut": "conv_shortcut",
}
"""Layers of a residual block: the original's and ours."""
RESAMPLE = {"resample.1": "resample.1", "time_conv": "time_conv"}
OUTER = {
    "conv1": "quant_conv",
    "conv2": "post_quant_conv",
    "encoder.conv1": "encoder.conv_in",
    "decoder.conv1": "decoder.conv_in",
}
MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)
"""Of the 16 channels of the published weights."""


@dataclass(frozen=True)
class QwenImageAutoencoder:
    """An `Autoencoder`: scaled latents are `(own - mean) / std`, channel by channel. `widths` are the channels of each
    level, from the finest; `in_time` says of each step between them whether it would join frames too."""

    latent_channels: int = 16
    widths: tuple[int, ...] = (96, 192, 384, 384)
    blocks_per_level: int = 2
    in_time: tuple[bool, ...] = (False, True, True)
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    preview: PreviewFactors | None = None

    @property
    def channels(self) -> int:
        """See `Autoencoder`, as all methods here."""
        return self.latent_channels

    @property
    def downscale(self) -> int:
        return 1 << (len(self.widths) - 1)

    def component(self) -> Component:
        from modules.models.names.component import Component, meta_module

        module = meta_module(
            "diffusers.AutoencoderKLQwenImage",
            base_dim=self.widths[0],
            z_dim=self.latent_channels,
            dim_mult=[width // self.widths[0] for width in self.widths],
            num_res_blocks=self.blocks_per_level,
            temperal_downsample=list(self.in_time),
            latents_mean=list(self.mean),
            latents_std=list(self.std),
        )
        keymap = _keymap(len(self.widths), self.blocks_per_level)
        return Component("vae", module, keymap, (f"{PREFIX}.",), MISSING_HINT)

    def sized_by(self, header: Header) -> Autoencoder:
        channels = header.get(f"{PREFIX}.conv2.weight")
        if channels is None or not channels.shape:
            return self
        widths: list[int] = []
        in_time: list[bool] = []
        blocks = number = 0
        is_new = True
        while True:
            level = f"{PREFIX}.encoder.downsamples.{number}"
            if f"{level}.resample.1.weight" in header:
                in_time.append(f"{level}.time_conv.weight" in header)
                is_new = True
            elif (last := header.get(f"{level}.residual.6.weight")) is not None:
                if is_new:
                    widths.append(last.shape[0])
                blocks += len(widths) == 1
                is_new = False
            else:
                break
            number += 1
        if len(widths) != len(in_time) + 1 or any(width % widths[0] for width in widths):
            return self
        return replace(
            self,
            latent_channels=channels.shape[0],
            widths=tuple(widths),
            blocks_per_level=blocks,
            in_time=tuple(in_time),
        )

    def refined(self, folder: Path) -> Autoencoder:
        settings = settings_of(folder, SETTINGS)
        for key, value in (("z_dim", self.latent_channels), ("num_res_blocks", self.blocks_per_level)):
            compare(folder, SETTINGS, settings, key, value)
        found = {}
        for key, field in (("latents_mean", "mean"), ("latents_std", "std")):
            numbers = settings.get(key)
            if numbers is None:
                continue
            if not isinstance(numbers, list) or len(numbers) != self.latent_channels:
                raise wrong(folder, SETTINGS, key, numbers, f"{self.latent_channels} numbers are expected")
            found[field] = tuple(float(number) for number in numbers)
        return replace(self, **found)  # type: ignore[arg-type]

    def own_shape(self, height: int, width: int) -> tuple[int, ...]:
        return self.latent_channels, 1, height, width

    def to_own(self, vae: Any, latents: Tensor) -> Tensor:
        mean, std = self._statistics(latents)
        return (latents * std + mean).unsqueeze(FRAME)

    def moments(self, vae: Any, own: Tensor) -> tuple[Tensor, Tensor]:
        own_mean, own_std = mean_and_std(own.squeeze(FRAME))
        mean, std = self._statistics(own)
        return (own_mean - mean) / std, own_std / std

    def decode(self, vae: Any, own: Tensor, tile_px: int = 0, few_tiles: bool = False) -> Tensor:
        from modules.models.autoencoders.frames import decode_frame

        return decode_frame(vae, own, tile_px // self.downscale, few_tiles)

    def encode(self, vae: Any, images: Tensor, tile_px: int = 0, few_tiles: bool = False) -> Tensor:
        from modules.models.autoencoders.frames import encode_frame

        return encode_frame(vae, images, tile_px // self.downscale, few_tiles)

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [1,C,1,1]."""
        mean, std = (like.new_tensor(item)[None, :, None, None] for item in (self.mean, self.std))
        return mean, std


def _keymap(levels: int, blocks_per_level: int) -> KeyMap:
    from modules.models.names.keymap import KeyMap

    return KeyMap(replace(pair, original=f"{PREFIX}.{pair.original}") for pair in _pairs(levels, blocks_per_level))


def _pairs(levels: int, blocks_per_level: int) -> Iterator[ModulePair]:
    """Blocks are in one list in the original; the decoder has one residual block more a level."""
    from modules.models.names.keymap import ModulePair

    def layers(original: str, ours: str, names: Mapping[str, str]) -> Iterator[ModulePair]:
        return (ModulePair(f"{original}.{theirs}", f"{ours}.{name}") for theirs, name in names.items())

    for original, ours in OUTER.items():
        yield ModulePair(original, ours)
    for half in ("encoder", "decoder"):
        yield ModulePair(f"{half}.head.0", f"{half}.norm_out")
        yield ModulePair(f"{half}.head.2", f"{half}.conv_out")
        yield from layers(f"{half}.middle.0", f"{half}.mid_block.resnets.0", RESIDUAL)
        yield ModulePair(f"{half}.middle.1", f"{half}.mid_block.attentions.0")
        yield from layers(f"{half}.middle.2", f"{half}.mid_block.resnets.1", RESIDUAL)
    for number in range(levels * (blocks_per_level + 1) - 1):
        is_residual = number % (blocks_per_level + 1) < blocks_per_level
        names = RESIDUAL if is_residual else RESAMPLE
        yield from layers(f"encoder.downsamples.{number}", f"encoder.down_blocks.{number}", names)
    for number in range(levels * (blocks_per_level + 2) - 1):
        level, place = divmod(number, blocks_per_level + 2)
        original, ours = f"decoder.upsamples.{number}", f"decoder.up_blocks.{level}"
        if place <= blocks_per_level:
            yield from layers(original, f"{ours}.resnets.{place}", RESIDUAL)
        else:
            yield from layers(original, f"{ours}.upsamplers.0", RESAMPLE)


def _read(model: Mapping[str, Any]) -> QwenImageAutoencoder:
    """The published sizes and constants; those of a file's tensors win."""
    return QwenImageAutoencoder(preview=preview_of_yaml(model))


def _diffusers_names(header: Header) -> Names:
    from modules.models.names.diffusers_names import count

    levels = count(header, "decoder.up_blocks.")
    return _keymap(levels, count(header, "decoder.up_blocks.0.resnets.") - 1), {name: name for name in header}


QWEN_IMAGE = AutoencoderType(
    read=_read,
    diffusers_names=_diffusers_names,
)
