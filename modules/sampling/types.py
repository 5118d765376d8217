"""The types that travel between processing and the samplers.

Everything is in variance-exploding scaling: `x = x0 + sigma * noise`, with sigma between about 0.03 and 14.6 for
Stable Diffusion 1. A model that wants another scaling is wrapped (`denoisers`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from modules.errors import InvalidValueError

# (x [B, C, H, W], sigma [B] fp32) -> denoised x0 [B, C, H, W]. Sigma may lie on the CPU while x does not: reading it
# (for a timestep, for guidance limits) then does not wait for the device.
Denoise: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class GuidedDenoise(Protocol):
    """A `Denoise` that also tells what the model predicted without the prompt.

    Samplers whose spec says `needs_uncond` (DDIM CFG++) ask for it after each call.
    """

    def __call__(self, x: Tensor, sigma: Tensor, /) -> Tensor: ...

    def uncond_denoised(self) -> Tensor:
        """The unconditional x0 prediction [B, C, H, W] of the last call, before guidance."""
        ...


@dataclass(frozen=True)
class StepInfo:
    """Facts that a sampler tells at each step: `x` is the latent that went into the model at `sigma`, `denoised` the
    guided prediction made from it (a preview). `index` counts from 0; `total` may grow for DPM adaptive."""

    index: int
    total: int
    sigma: float
    x: Tensor
    denoised: Tensor


# May raise Interrupted or Skipped: samplers let it pass.
OnStep: TypeAlias = Callable[[StepInfo], None]


class StepNoise(Protocol):
    """Fresh unit-variance noise for one move of a stochastic sampler, [B, C, H, W]."""

    def __call__(self, sigma_from: float, sigma_to: float, rows: Sequence[bool] | None = None) -> Tensor:
        """Noise for the move. `rows` (one flag an image): images that are not to draw this time get zeros, and
        their generators stay where they are."""
        ...


@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """The knobs of the samplers; each listens to those its paper has (`SamplerSpec.takes`, `SamplerSpec.eta`).

    eta: amount of fresh noise; None means the sampler's default. s_churn, s_tmin, s_tmax, s_noise: stochastic churn
    of Karras et al. 2022; an s_tmax of 0 means infinity. sigma_range: (smallest, largest) sigma for DPM fast and
    DPM adaptive; None means from the schedule. uni_pc_*: variant "bh1", "bh2" or "vary_coeff"; skip type
    "time_uniform", "time_quadratic" or "logSNR"; order from 1, cut down where there are fewer steps.
    """

    eta: float | None = None
    s_churn: float = 0.0
    s_tmin: float = 0.0
    s_tmax: float = math.inf
    s_noise: float = 1.0
    sigma_range: tuple[float, float] | None = None
    uni_pc_variant: str = "bh1"
    uni_pc_skip_type: str = "time_uniform"
    uni_pc_order: int = 3
    uni_pc_lower_order_final: bool = True

    def __post_init__(self) -> None:
        _check_choice("UniPC variant", self.uni_pc_variant, ("bh1", "bh2", "vary_coeff"))
        _check_choice("UniPC skip type", self.uni_pc_skip_type, ("time_uniform", "time_quadratic", "logSNR"))
        if self.uni_pc_order < 1:
            raise InvalidValueError(f"UniPC order is {self.uni_pc_order}; it must be at least 1.")
        if self.s_tmax == 0:
            object.__setattr__(self, "s_tmax", math.inf)


def _check_choice(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidValueError(f"{what} is {value!r}; choose one of {', '.join(allowed)}.")


Sampler: TypeAlias = Callable[[Denoise, Tensor, Tensor, SamplerOptions, StepNoise, OnStep], Tensor]
