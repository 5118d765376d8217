"""What a UNet is given beside the noisy latents and the timestep."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class DenoiserContext:
    """`crossattn` [N,tokens,width] is attended to; `vector` [N,V] is added to the time embedding (SDXL); `image`
    [N,C,h,w] lies behind the latents on the channel axis (inpainting models)."""

    crossattn: Tensor
    vector: Tensor | None = None
    image: Tensor | None = None
