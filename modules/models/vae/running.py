"""How a VAE is run: in one piece or in tiles, and again in a wider dtype when 16 bits gave NaN."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modules.errors import NumericalError
from modules.models.vae.tiling import decode_tiled, encode_tiled

log = logging.getLogger(__name__)

TILE_AFTER_OOM_PX = 512


@dataclass(frozen=True)
class VaeRules:
    """`tile_px`: area of a tile, by its side in the image; 0: one piece. `after_nan`: the dtypes to try in turn.
    `tiles_after_oom`: once more in tiles when memory does not last; False where the caller sees to that."""

    tile_px: int = 0
    after_nan: tuple[torch.dtype, ...] = ()
    tiles_after_oom: bool = True


@dataclass
class VaeRunner:
    """Runs the VAE of one model. `dtype` is that of its weights, and becomes a wider one after NaN, for good."""

    device: torch.device
    dtype: torch.dtype
    downscale: int
    rules: VaeRules = field(default_factory=VaeRules)

    def decode(self, vae: Any, latent: Tensor) -> Tensor:
        """Latents [B,C,h,w], not scaled, to images [B,3,H,W], float32. NaN in every dtype: `NumericalError`."""
        return self._finite(vae, lambda tile: self._decode(vae, latent, tile), "produced")

    def moments(self, vae: Any, images: Tensor) -> Tensor:
        """Images [B,3,H,W] to mean and log variance [B,2C,h,w] of latents, not scaled, float32."""
        return self._finite(vae, lambda tile: self._moments(vae, images, tile), "made of an image")

    def _decode(self, vae: Any, latent: Tensor, tile: int) -> Tensor:
        latent = latent.to(self.device, self.dtype)
        decoded: Tensor = decode_tiled(vae, latent, tile) if tile else vae.decode(latent, return_dict=False)[0]
        return decoded.float()

    def _moments(self, vae: Any, images: Tensor, tile: int) -> Tensor:
        images = images.to(self.device, self.dtype)
        if tile and max(images.shape[-2:]) > tile * self.downscale:
            return encode_tiled(vae, images, tile).float()
        moments: Tensor = vae.encode(images).latent_dist.parameters
        return moments.float()

    def _finite(self, vae: Any, run: Callable[[int], Tensor], did: str) -> Tensor:
        result = self._within_memory(run)
        for dtype in self.rules.after_nan:
            if torch.isfinite(result).all() or self.dtype in (dtype, torch.float32):
                continue
            log.warning("The VAE gave NaN in %s; it computes in %s from now on.", self.dtype, dtype)
            vae.to(dtype)
            self.dtype = dtype
            result = self._within_memory(run)
        if not torch.isfinite(result).all():
            raise NumericalError(
                f"The VAE {did} NaN. Start with --no-half-vae to compute it in 32 bit, or choose another VAE."
            )
        return result

    def _within_memory(self, run: Callable[[int], Tensor]) -> Tensor:
        """In tiles as the rules say; once more in tiles where the device's memory did not last."""
        tile = self.rules.tile_px // self.downscale
        try:
            return run(tile)
        except torch.OutOfMemoryError as error:
            smaller = TILE_AFTER_OOM_PX // self.downscale
            if 0 < tile <= smaller or not self.rules.tiles_after_oom:
                raise
            log.warning("Not enough memory for the VAE in one piece, it runs in tiles: %s", error)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return run(smaller)
