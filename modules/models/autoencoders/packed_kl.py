"""diffusers' AutoencoderKLFlux2: a KL autoencoder of 32 channels, whose latents are packed 2 x 2 to 128 channels of
half the size and normalised by the running statistics of a batch norm that the file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.models.autoencoders.autoencoder import MISSING_HINT, PREFIX, Autoencoder, AutoencoderType, PreviewFactors
from modules.models.autoencoders.kl import (
    NORM_GROUPS,
    SETTINGS,
    KlSizes,
    check_sizes,
    decode_kl,
    diffusers_names,
    encode_kl,
    mean_and_std,
    preview_of_yaml,
    sizes_in,
    sizes_of_yaml,
)
from modules.models.names.diffusers_settings import settings_of

if TYPE_CHECKING:
    from torch import Tensor

    from modules.models.names.component import Component, Header
    from modules.models.names.folder_layout import Names
    from modules.models.names.keymap import KeyMap

PATCH = 2
EPSILON = 1e-4
INNER = (("encoder.quant_conv", "quant_conv"), ("decoder.post_quant_conv", "post_quant_conv"))
"""Original names of the convolutions around the latents, and where AutoencoderKL has them."""


@dataclass(frozen=True)
class PackedKlAutoencoder:
    """An `Autoencoder`. `sizes` are those of the encoder; `decoder_widths`: None where the decoder has the same."""

    sizes: KlSizes
    decoder_widths: tuple[int, ...] | None = None
    preview: PreviewFactors | None = None

    @property
    def channels(self) -> int:
        """See `Autoencoder`, as all methods here."""
        return self.sizes.latent_channels * PATCH**2

    @property
    def downscale(self) -> int:
        return self._own_downscale * PATCH

    @property
    def _own_downscale(self) -> int:
        return 1 << (self.sizes.levels - 1)

    def component(self) -> Component:
        from modules.models.names.component import Component, meta_module

        sizes = self.sizes
        module = meta_module(
            "diffusers.AutoencoderKLFlux2",
            in_channels=sizes.in_channels,
            out_channels=sizes.out_channels,
            latent_channels=sizes.latent_channels,
            block_out_channels=sizes.widths,
            decoder_block_out_channels=self.decoder_widths,
            layers_per_block=sizes.blocks_per_level,
            down_block_types=("DownEncoderBlock2D",) * sizes.levels,
            up_block_types=("UpDecoderBlock2D",) * sizes.levels,
            norm_num_groups=NORM_GROUPS,
            batch_norm_eps=EPSILON,
            use_quant_conv=sizes.has_quant_conv,
            use_post_quant_conv=sizes.has_quant_conv,
        )
        keymap = _keymap(sizes.levels, sizes.blocks_per_level)
        return Component("vae", module, keymap, (f"{PREFIX}.",), MISSING_HINT)

    def sized_by(self, header: Header) -> Autoencoder:
        sizes = sizes_in(header)
        if sizes is None:
            return self
        sizes = replace(sizes, has_quant_conv=f"{PREFIX}.{INNER[1][0]}.weight" in header)
        first = [f"{PREFIX}.decoder.up.{level}.block.0.conv2.weight" for level in range(sizes.levels)]
        widths = tuple(header[key].shape[0] for key in first if key in header)
        return replace(self, sizes=sizes, decoder_widths=widths if len(widths) == sizes.levels else None)

    def refined(self, folder: Path) -> Autoencoder:
        check_sizes(folder, settings_of(folder, SETTINGS), self.sizes)
        return self

    def own_shape(self, height: int, width: int) -> tuple[int, ...]:
        return self.sizes.latent_channels, height * PATCH, width * PATCH

    def to_own(self, vae: Any, latents: Tensor) -> Tensor:
        from torch.nn import functional as F

        mean, std = self._statistics(vae, latents)
        return F.pixel_shuffle(latents * std + mean, PATCH)  # channels are (c i j)

    def moments(self, vae: Any, own: Tensor) -> tuple[Tensor, Tensor]:
        from torch.nn import functional as F

        height, width = (side // PATCH * PATCH for side in own.shape[-2:])  # of an image that ends within a patch
        own_mean, own_std = mean_and_std(own[..., :height, :width])
        mean, std = self._statistics(vae, own)
        return (F.pixel_unshuffle(own_mean, PATCH) - mean) / std, F.pixel_unshuffle(own_std, PATCH) / std

    def decode(self, vae: Any, own: Tensor, tile_px: int = 0, few_tiles: bool = False) -> Tensor:
        return decode_kl(vae, own, tile_px // self._own_downscale, few_tiles)

    def encode(self, vae: Any, images: Tensor, tile_px: int = 0, few_tiles: bool = False) -> Tensor:
        return encode_kl(vae, images, tile_px // self._own_downscale, self._own_downscale, few_tiles)

    @staticmethod
    def _statistics(vae: Any, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [1,C,1,1] of packed latents."""
        mean, variance = (item.to(like)[None, :, None, None] for item in (vae.bn.running_mean, vae.bn.running_var))
        return mean, (variance + EPSILON).sqrt()


def _keymap(levels: int, blocks_per_level: int) -> KeyMap:
    from modules.models.names.keymap import KeyMap, ModulePair
    from modules.models.names.ldm_vae import vae_pairs

    inner = {ours: original for original, ours in INNER}
    pairs = [
        replace(pair, original=f"{PREFIX}.{inner.get(pair.ours, pair.original)}")
        for pair in vae_pairs(levels, blocks_per_level)
    ]
    return KeyMap((*pairs, ModulePair(f"{PREFIX}.bn", "bn")))


def _read(model: Mapping[str, Any]) -> PackedKlAutoencoder:
    preview = preview_of_yaml(model)
    packed = None if preview is None else replace(preview, patch=PATCH)
    return PackedKlAutoencoder(sizes_of_yaml(model["first_stage_config"]["params"]), preview=packed)


def _diffusers_names(header: Header) -> Names:
    from modules.models.names.diffusers_names import count

    _, ours = diffusers_names(header)
    blocks = count(header, "encoder.down_blocks.0.resnets.")
    return _keymap(count(header, "encoder.down_blocks."), blocks), ours


PACKED_KL = AutoencoderType(
    read=_read,
    diffusers_names=_diffusers_names,
    renames={ours: original for original, ours in INNER},
)
