"""The autoencoder of latent diffusion (Rombach et al. 2022, arXiv:2112.10752) and most families since: diffusers'
AutoencoderKL, whose latents are shifted and scaled by one number each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.models.autoencoders.autoencoder import MISSING_HINT, PREFIX, Autoencoder, AutoencoderType, PreviewFactors
from modules.models.libraries import library_name
from modules.models.names.diffusers_settings import compare, settings_of, wrong

if TYPE_CHECKING:
    from diffusers import AutoencoderKL
    from torch import Tensor

    from modules.models.names.component import Component, Header
    from modules.models.names.folder_layout import Names

NORM_GROUPS = 32
SETTINGS = "vae/config.json"
PREVIEW_FACTORS, PREVIEW_BIAS = "preview_rgb_factors", "preview_rgb_bias"
MARGIN = "decode_margin"
SCALE_FACTOR = 0.18215  # of Stable Diffusion 1 and 2, where a YAML does not say it


@dataclass(frozen=True)
class KlSizes:
    """Sizes of encoder and decoder; each level halves the image."""

    in_channels: int
    out_channels: int
    latent_channels: int
    widths: tuple[int, ...]  # channels of each level, from the finest
    blocks_per_level: int
    has_quant_conv: bool = True  # a 1x1 convolution on either side of the latents

    @property
    def levels(self) -> int:
        """Number of resolutions."""
        return len(self.widths)


@dataclass(frozen=True)
class KlAutoencoder:
    """An `Autoencoder`: scaled latents are `(own - shift) * scale_factor`; with `by_channel`, the mean and the standard
    deviation of each channel, `(own - mean) / deviation * scale_factor`.

    `margin`: so many latents are mirrored at the left and the lower edge, decoded with the others, and cut off. For a
    decoder that leaves a spot in that corner (Karras et al. 2020, arXiv:1912.04958, section 2.1)."""

    sizes: KlSizes
    scale_factor: float = SCALE_FACTOR
    shift: float = 0.0
    preview: PreviewFactors | None = None
    by_channel: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    margin: int = 0

    @property
    def channels(self) -> int:
        """See `Autoencoder`, as all methods here."""
        return self.sizes.latent_channels

    @property
    def downscale(self) -> int:
        return 1 << (self.sizes.levels - 1)

    def component(self) -> Component:
        from modules.models.names.component import Component, on_meta
        from modules.models.names.ldm_vae import vae_keymap

        with on_meta():
            module = build_kl(self.sizes)
        keymap = vae_keymap(self.sizes.levels, self.sizes.blocks_per_level)
        return Component("vae", module, keymap, (f"{PREFIX}.",), MISSING_HINT)

    def sized_by(self, header: Header) -> Autoencoder:
        sizes = sizes_in(header)
        return self if sizes is None else replace(self, sizes=sizes)

    def refined(self, folder: Path) -> Autoencoder:
        settings = settings_of(folder, SETTINGS)
        check_sizes(folder, settings, self.sizes)
        for key in ("latents_mean", "latents_std"):
            if settings.get(key) is not None:
                raise wrong(folder, SETTINGS, key, settings[key], "latents that are shifted by channel are not known")
        scale = settings.get("scaling_factor", self.scale_factor)
        if not isinstance(scale, int | float) or isinstance(scale, bool) or not scale > 0:
            raise wrong(folder, SETTINGS, "scaling_factor", scale, "it must be a number above 0")
        shift = settings.get("shift_factor")
        shift = self.shift if shift is None else shift
        if not isinstance(shift, int | float) or isinstance(shift, bool):
            raise wrong(folder, SETTINGS, "shift_factor", shift, "it must be a number")
        return replace(self, scale_factor=float(scale), shift=float(shift))

    def own_shape(self, height: int, width: int) -> tuple[int, ...]:
        return self.channels, height, width

    def to_own(self, vae: Any, latents: Tensor) -> Tensor:
        if self.by_channel is None:
            return latents / self.scale_factor + self.shift
        shift, deviation = (latents.new_tensor(values).reshape(1, -1, 1, 1) for values in self.by_channel)
        return latents / self.scale_factor * deviation + shift

    def moments(self, vae: Any, own: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = mean_and_std(own)
        if self.by_channel is None:
            return (mean - self.shift) * self.scale_factor, std * self.scale_factor
        shift, deviation = (mean.new_tensor(values).reshape(1, -1, 1, 1) for values in self.by_channel)
        return (mean - shift) / deviation * self.scale_factor, std / deviation * self.scale_factor

    def decode(self, vae: Any, own: Tensor, tile_px: int = 0, few_tiles: bool = False) -> Tensor:
        tile = tile_px // self.downscale
        if not 0 < self.margin < min(own.shape[-2:]):
            return decode_kl(vae, own, tile, few_tiles)
        from torch.nn.functional import pad

        wide, cut = pad(own, (self.margin, 0, 0, self.margin), mode="reflect"), self.margin * self.downscale
        return decode_kl(vae, wide, tile, few_tiles)[..., :-cut, cut:]

    def encode(self, vae: Any, images: Tensor, tile_px: int = 0, few_tiles: bool = False) -> Tensor:
        return encode_kl(vae, images, tile_px // self.downscale, self.downscale, few_tiles)


def decode_kl(vae: Any, own: Tensor, tile: int, few_tiles: bool = False) -> Tensor:
    """Own latents [B,C,h,w] to images, in tiles of `tile` latents a side or in one piece."""
    from modules.models.autoencoders.tiling import decode_tiled

    if tile:
        return decode_tiled(vae, own, tile, few_tiles)
    images: Tensor = vae.decode(own, return_dict=False)[0]
    return images


def encode_kl(vae: Any, images: Tensor, tile: int, downscale: int, few_tiles: bool = False) -> Tensor:
    """Images to mean and log variance [B,2C,h,w], in tiles of `tile` latents a side or in one piece."""
    from modules.models.autoencoders.tiling import encode_tiled

    if tile and max(images.shape[-2:]) > tile * downscale:
        return encode_tiled(vae, images, tile, few_tiles)
    parameters: Tensor = vae.encode(images).latent_dist.parameters
    return parameters


def mean_and_std(parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation from mean and log variance, side by side as channels."""
    posterior = library_name("diffusers.models.autoencoders.vae.DiagonalGaussianDistribution")(parameters)
    return posterior.mean, posterior.std


def build_kl(sizes: KlSizes) -> AutoencoderKL:
    """An uninitialised module of these sizes; call it under `on_meta` to allocate nothing."""
    return library_name("diffusers.AutoencoderKL")(
        in_channels=sizes.in_channels,
        out_channels=sizes.out_channels,
        latent_channels=sizes.latent_channels,
        block_out_channels=sizes.widths,
        layers_per_block=sizes.blocks_per_level,
        down_block_types=("DownEncoderBlock2D",) * sizes.levels,
        up_block_types=("UpDecoderBlock2D",) * sizes.levels,
        norm_num_groups=NORM_GROUPS,
        use_quant_conv=sizes.has_quant_conv,
        use_post_quant_conv=sizes.has_quant_conv,
    )


def sizes_in(header: Header) -> KlSizes | None:
    """The sizes of the autoencoder in a checkpoint's header; None where it holds none, or not all of it."""
    try:
        widths: list[int] = []
        while (first := header.get(f"{PREFIX}.encoder.down.{len(widths)}.block.0.conv2.weight")) is not None:
            widths.append(first.shape[0])
        blocks = 0
        while f"{PREFIX}.encoder.down.0.block.{blocks}.conv2.weight" in header:
            blocks += 1
        if not widths or widths[0] != header[f"{PREFIX}.encoder.conv_in.weight"].shape[0]:
            return None
        return KlSizes(
            in_channels=header[f"{PREFIX}.encoder.conv_in.weight"].shape[1],
            out_channels=header[f"{PREFIX}.decoder.conv_out.weight"].shape[0],
            latent_channels=header[f"{PREFIX}.decoder.conv_in.weight"].shape[1],
            widths=tuple(widths),
            blocks_per_level=blocks,
            has_quant_conv=f"{PREFIX}.post_quant_conv.weight" in header,
        )
    except (KeyError, IndexError):
        return None


def check_sizes(folder: Path, settings: Mapping[str, Any], sizes: KlSizes) -> None:
    """Hold the settings of a folder of diffusers against the tensors; raises `CheckpointError`."""
    for key, value in (
        ("latent_channels", sizes.latent_channels),
        ("block_out_channels", list(sizes.widths)),
        ("layers_per_block", sizes.blocks_per_level),
    ):
        compare(folder, SETTINGS, dict(settings), key, value)


def sizes_of_yaml(params: Mapping[str, Any]) -> KlSizes:
    """From `first_stage_config.params`. Raises `KeyError` and `ValueError`."""
    config = params["ddconfig"]
    if config.get("attn_resolutions"):
        raise ValueError("attn_resolutions of the autoencoder must be empty")
    width = int(config["ch"])
    return KlSizes(
        in_channels=int(config["in_channels"]),
        out_channels=int(config["out_ch"]),
        latent_channels=int(params["embed_dim"]),
        widths=tuple(width * int(m) for m in config["ch_mult"]),
        blocks_per_level=int(config["num_res_blocks"]),
        has_quant_conv=bool(params.get("quant_conv", True)),
    )


def preview_of_yaml(model: Mapping[str, Any]) -> PreviewFactors | None:
    """From `model.params`, where it has `preview_rgb_factors`."""
    factors, bias = model.get(PREVIEW_FACTORS), model.get(PREVIEW_BIAS)
    if not factors:
        return None
    read = tuple(tuple(float(value) for value in row) for row in factors)
    return PreviewFactors(read, tuple(float(value) for value in bias)) if bias else PreviewFactors(read)


def _read(model: Mapping[str, Any]) -> KlAutoencoder:
    return KlAutoencoder(
        sizes_of_yaml(model["first_stage_config"]["params"]),
        scale_factor=float(model.get("scale_factor", SCALE_FACTOR)),
        shift=float(model.get("shift_factor", 0.0)),
        preview=preview_of_yaml(model),
        margin=int(model.get(MARGIN, 0)),
    )


def diffusers_names(header: Header) -> Names:
    """The key map of a module with these names, and what it calls them."""
    from modules.models.names.diffusers_names import modern_vae_name, vae_map

    return vae_map(header), {name: modern_vae_name(name) for name in header}


KL = AutoencoderType(
    read=_read,
    diffusers_names=diffusers_names,
)
