"""How a VAE is run: in one piece or in tiles, and again in a wider dtype when 16 bits gave NaN.

A call that runs out of memory raises; `modules.processing.engine.recovery` makes it again in tiles.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modules.errors import NumericalError
from modules.models.autoencoders.autoencoder import Autoencoder
from modules.models.autoencoders.separate_tiles import SeparateTiles
from modules.settings.values import Settings

log = logging.getLogger(__name__)

BLACK = -1.0  # of a decoded image
MAIN_MEMORY_TILE_PX = 128


@dataclass(frozen=True)
class VaeRules:
    """`tile_px`: side of a tile in the image; 0: the image in one piece. `after_nan`: the dtypes to try in turn.
    `separate` comes before `tile_px` where the VAE is one that it knows."""

    tile_px: int = 0
    after_nan: tuple[torch.dtype, ...] = ()
    separate: SeparateTiles | None = None

    @classmethod
    def of(cls, settings: Settings) -> VaeRules:
        """Read the rules from the settings: after NaN bfloat16 comes first if both dtypes are allowed."""
        after_nan = []
        if settings.vae.auto_vae_precision_bfloat16:
            after_nan.append(torch.bfloat16)
        if settings.vae.auto_vae_precision:
            after_nan.append(torch.float32)
        return cls(settings.vae.vae_tile_size, tuple(after_nan))


@dataclass
class VaeRunner:
    """Runs the VAE of one model. `dtype` is that of its weights, and becomes a wider one after NaN, for good. Without
    `check_nan` what is still NaN then is let through, as black pixels."""

    device: torch.device
    dtype: torch.dtype
    rules: VaeRules = field(default_factory=VaeRules)
    check_nan: bool = True

    def decode(self, autoencoder: Autoencoder, vae: Any, own: Tensor) -> Tensor:
        """Own latents of `autoencoder`, whose module is `vae`, to images [B,3,H,W], float32. NaN in every dtype:
        `NumericalError`."""
        images = self._finite(vae, lambda: self._decode(autoencoder, vae, own), "produced")
        return images if self.check_nan else images.nan_to_num(BLACK)

    def moments(self, autoencoder: Autoencoder, vae: Any, images: Tensor) -> Tensor:
        """Images [B,3,H,W] to mean and log variance of own latents, float32, see `Autoencoder.encode`."""
        return self._finite(vae, lambda: self._moments(autoencoder, vae, images), "made of an image")

    @property
    def tile_px(self) -> int:
        """Side of a tile in the image; 0: in one piece."""
        return tile_side_px(self.device, self.dtype, self.rules.tile_px)

    def _decode(self, autoencoder: Autoencoder, vae: Any, own: Tensor) -> Tensor:
        own = quick_layout(own.to(self.device, self.dtype))
        if self.rules.separate is not None and (images := self.rules.separate.decode(vae, own)) is not None:
            return images.float().contiguous()
        return autoencoder.decode(vae, own, self.tile_px).float().contiguous()

    def _moments(self, autoencoder: Autoencoder, vae: Any, images: Tensor) -> Tensor:
        images = quick_layout(images.to(self.device, self.dtype))
        if self.rules.separate is not None and (moments := self.rules.separate.encode(vae, images)) is not None:
            return moments.float().contiguous()
        return autoencoder.encode(vae, images, self.tile_px).float().contiguous()

    def _finite(self, vae: Any, run: Callable[[], Tensor], did: str) -> Tensor:
        result = run()
        for dtype in self.rules.after_nan:
            if torch.isfinite(result).all() or self.dtype in (dtype, torch.float32):
                continue
            log.warning("The VAE gave NaN in %s; it computes in %s from now on.", self.dtype, dtype)
            vae.to(dtype)
            self.dtype = dtype
            result = run()
        if self.check_nan and not torch.isfinite(result).all():
            raise NumericalError(
                f"The VAE {did} NaN. Start with --no-half-vae to compute it in 32 bit, or choose another VAE; "
                "--disable-nan-check lets such images through."
            )
        return result


def tile_side_px(device: torch.device, dtype: torch.dtype, chosen_px: int) -> int:
    """Return the side of a VAE's tiles in the image, where the settings say `chosen_px`; 0: in one piece.

    On the CPU float32 maps of a whole image, with the copies that convolutions make of them, are the most that an image
    takes: 1.0 GB at 512 px, 0.45 in tiles of 128. Decoding takes about 1.2 times as long (AVX2, one thread).
    """
    if device.type != "cpu" or dtype != torch.float32:
        return chosen_px
    return min(chosen_px or MAIN_MEMORY_TILE_PX, MAIN_MEMORY_TILE_PX)


def quick_layout(x: Tensor) -> Tensor:
    """`x` [B,C,H,W] with its channels last in memory where that is quicker: in 16 bits on the CPU, where a VAE then
    takes 0.95 of its time. What follows keeps the layout. In 32 bits it changes the last digits and saves nothing."""
    if x.device.type != "cpu" or x.dtype.itemsize != 2 or x.ndim != 4:
        return x
    return x.contiguous(memory_format=torch.channels_last)
