"""The autoencoder of Qwen-Image-2.1: that of Qwen-Image with one frame, a shortcut around each level, a wider decoder
and 16 pixels to a latent of 64 channels. It knows transparency: images are given to it as opaque, and of what it
decodes the colours are taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from modules.models.autoencoders.autoencoder import MISSING_HINT, PREFIX, Autoencoder, AutoencoderType
from modules.models.autoencoders.kl import preview_of_yaml
from modules.models.autoencoders.qwen_image import OUTER, RESAMPLE, RESIDUAL, QwenImageAutoencoder

if TYPE_CHECKING:
    from torch import Tensor

    from modules.models.names.component import Component, Header
    from modules.models.names.folder_layout import Names
    from modules.models.names.keymap import KeyMap

COLOURS = 3
MEAN = (
    *(0.5126, 0.7721, -0.0631, 1.3506, -0.7855, -2.1025, -0.3458, 1.3722, 1.8873, -1.7177, -0.6510, 0.2732, 0.7562),
    *(-0.6163, -1.0277, 3.8363, 2.0210, 0.0472, 0.9320, 2.0087, 2.4954, -0.1391, -1.4249, 1.8464, -0.5236, 1.2826),
    *(3.7046, -1.3035, 2.7286, -1.4518, -1.9036, -1.9955, -0.0342, -1.0265, -0.7636, 3.0555, 0.0746, -3.0751),
    *(-0.1076, 1.7376, -1.0914, -1.9435, -0.2784, -1.3680, 0.4809, -0.4433, 0.3764, 0.5729, -2.0595, 1.0960, -1.3260),
    *(-2.0211, -5.0179, 0.5275, 4.0162, 1.8505, 0.3026, 1.9373, 1.4937, 0.2632, 0.5547, -1.7121, -0.1562, 0.0304),
)
STD = (
    *(3.2001, 3.2936, 3.4321, 3.0091, 3.1061, 4.0379, 4.0705, 3.7910, 3.0785, 3.6500, 3.9308, 3.0904, 2.8778, 3.7675),
    *(3.7320, 5.0756, 3.2864, 4.0397, 3.1317, 4.0443, 2.9249, 3.9454, 3.0988, 4.2489, 3.4896, 3.8513, 3.9323, 3.4719),
    *(3.7498, 4.2830, 3.5694, 4.2467, 3.9037, 3.2947, 5.0770, 3.5075, 3.2700, 3.4767, 2.8063, 5.1125, 3.5327, 4.7833),
    *(3.1286, 4.1819, 3.8527, 3.8312, 3.5605, 4.3875, 3.9624, 4.0168, 3.5643, 4.0550, 5.5614, 4.2963, 4.4080, 3.4959),
    *(3.8747, 3.7608, 3.5735, 3.1490, 3.7662, 3.6746, 3.4563, 3.8161),
)
"""Statistics of the 64 channels of the published weights."""


@dataclass(frozen=True)
class QwenImage21Autoencoder(QwenImageAutoencoder):
    """An `Autoencoder`, see the class that it is made of; `decoder_width` is that of the finest level."""

    latent_channels: int = 64
    widths: tuple[int, ...] = (96, 192, 384, 768, 768)
    in_time: tuple[bool, ...] = (False, True, True, True)
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    decoder_width: int = 144

    def component(self) -> Component:
        from modules.models.names.component import Component, meta_module

        module = meta_module(
            "diffusers.AutoencoderKLQwenImage21",
            base_dim=self.widths[0],
            decoder_base_dim=self.decoder_width,
            z_dim=self.latent_channels,
            dim_mult=[width // self.widths[0] for width in self.widths],
            num_res_blocks=self.blocks_per_level,
            temperal_downsample=list(self.in_time),
            latents_mean=list(self.mean),
            latents_std=list(self.std),
        )
        return Component("vae", module, _keymap(len(self.widths), self.blocks_per_level), (f"{PREFIX}.",), MISSING_HINT)

    def sized_by(self, header: Header) -> Autoencoder:
        channels, last = header.get(f"{PREFIX}.conv2.weight"), header.get(f"{PREFIX}.decoder.head.2.weight")
        if channels is None or last is None or not channels.shape or len(last.shape) < 2:
            return self
        widths: list[int] = []
        while (
            conv := header.get(f"{PREFIX}.encoder.downsamples.{len(widths)}.downsamples.0.residual.6.weight")
        ) is not None:
            widths.append(conv.shape[0])
        level = f"{PREFIX}.encoder.downsamples.0.downsamples"
        blocks = 0
        while f"{level}.{blocks}.residual.6.weight" in header:
            blocks += 1
        if not widths or any(width % widths[0] for width in widths):
            return self
        in_time = tuple(
            f"{PREFIX}.encoder.downsamples.{number}.downsamples.{blocks}.time_conv.weight" in header
            for number in range(len(widths) - 1)
        )
        return replace(
            self,
            latent_channels=channels.shape[0],
            widths=tuple(widths),
            blocks_per_level=blocks,
            in_time=in_time,
            decoder_width=last.shape[1],
        )

    def decode(self, vae: Any, own: Tensor, tile_px: int = 0, few_tiles: bool = False) -> Tensor:
        return super().decode(vae, own, tile_px, few_tiles)[:, :COLOURS]

    def encode(self, vae: Any, images: Tensor, tile_px: int = 0, few_tiles: bool = False) -> Tensor:
        import torch

        opaque = torch.cat([images, torch.ones_like(images[:, :1])], dim=1)
        return super().encode(vae, opaque, tile_px, few_tiles)


def _keymap(levels: int, blocks: int) -> KeyMap:
    from modules.models.names.keymap import KeyMap, ModulePair

    return KeyMap(ModulePair(f"{PREFIX}.{original}", ours) for original, ours in _pairs(levels, blocks))


def _pairs(levels: int, blocks: int) -> Iterator[tuple[str, str]]:
    """Original names and ours; the decoder has one residual block more a level."""
    yield from OUTER.items()
    for half, down, more in (("encoder", "down", 0), ("decoder", "up", 1)):
        lists: list[tuple[str, str, Mapping[str, str]]] = [
            (f"{half}.middle.{2 * place}", f"{half}.mid_block.resnets.{place}", RESIDUAL) for place in (0, 1)
        ]
        for level in range(levels):
            original, ours = f"{half}.{down}samples.{level}.{down}samples", f"{half}.{down}_blocks.{level}"
            lists += [(f"{original}.{n}", f"{ours}.resnets.{n}", RESIDUAL) for n in range(blocks + more)]
            lists.append((f"{original}.{blocks + more}", f"{ours}.{down}sampler", RESAMPLE))
        for original, ours, names in lists:
            yield from ((f"{original}.{theirs}", f"{ours}.{name}") for theirs, name in names.items())
        yield f"{half}.middle.1", f"{half}.mid_block.attentions.0"
        yield f"{half}.head.0", f"{half}.norm_out"
        yield f"{half}.head.2", f"{half}.conv_out"


def _read(model: Mapping[str, Any]) -> QwenImage21Autoencoder:
    """The published sizes and constants; those of a file's tensors win."""
    return QwenImage21Autoencoder(preview=preview_of_yaml(model))


def _diffusers_names(header: Header) -> Names:
    from modules.models.names.diffusers_names import count

    levels = count(header, "decoder.up_blocks.")
    return _keymap(levels, count(header, "decoder.up_blocks.0.resnets.") - 1), {name: name for name in header}


QWEN_IMAGE21 = AutoencoderType(read=_read, diffusers_names=_diffusers_names)
