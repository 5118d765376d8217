"""What a denoiser is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

Extra = Tensor | tuple[Tensor, ...]
REFERENCE = "reference"
"""In `ModelInputs.extra`: scaled latents [N,C,h,w] of an image that is shown next to the one that is made."""


@dataclass(frozen=True, eq=False)
class DenoiserContext:
    """What a denoiser is given alongside the noisy latents and the timestep, in rows of the batch.

    `crossattn` [N,tokens,width] is attended to, where `mask` [N,tokens] is True (None: everywhere); `vector` [N,V] is
    added to the time embedding, in families that have one; `image` [N,C,h,w] is put behind the latents on the channel
    axis (inpainting models); `extra` is passed to the denoiser by the names of its own arguments (residuals of a
    control model, for one).
    """

    crossattn: Tensor
    vector: Tensor | None = None
    image: Tensor | None = None
    extra: Mapping[str, Extra] = field(default_factory=dict)
    mask: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """One call of a denoiser, on its device and in its dtype: `x` [N,C,h,w] with all channels, `timesteps` [N], and
    the rest as in `DenoiserContext`."""

    x: Tensor
    timesteps: Tensor
    crossattn: Tensor
    vector: Tensor | None = None
    extra: Mapping[str, Extra] = field(default_factory=dict)
    mask: Tensor | None = None
