"""Noise levels of a model that was trained on discrete timesteps: alphas_cumprod, sigmas and the way between.

Pure functions change alphas_cumprod (zero terminal SNR, fp16 downcast); `DiscreteSchedule` and `LcmSchedule` turn
them into sigmas. `SigmaMap` is what schedules and denoisers need of either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ZERO_SNR_LAST_ALPHA_BAR = 4.8973451890853435e-08


def scaled_linear_alphas_cumprod(linear_start: float = 0.00085, linear_end: float = 0.012, steps: int = 1000) -> Tensor:
    """alphas_cumprod [steps] fp32 of the "scaled linear" betas (linear in their square root), computed in fp64.

    The defaults are those of latent diffusion (Rombach et al. 2022, arXiv:2112.10752).
    """
    betas = np.linspace(linear_start**0.5, linear_end**0.5, steps, dtype=np.float64) ** 2
    return torch.from_numpy(np.cumprod(1.0 - betas)).to(torch.float32)


def log_uniform_alphas_cumprod(sigma_min: float, sigma_max: float, steps: int = 1000) -> Tensor:
    """alphas_cumprod [steps] fp64 whose sigmas are evenly spaced in log sigma over a range: the levels of models that
    were trained on all of them (Karras et al. 2022, arXiv:2206.00364)."""
    sigmas = torch.linspace(np.log(sigma_min), np.log(sigma_max), steps, dtype=torch.float64).exp()
    return 1 / (1 + sigmas**2)


def rescale_zero_terminal_snr(alphas_cumprod: Tensor) -> Tensor:
    """alphas_cumprod shifted and scaled so that the last step is (nearly) pure noise; same shape and dtype.

    Lin et al. 2023, arXiv:2305.08891, algorithm 1. The last value is not 0 but 4.897e-08, so that sigma stays finite.
    """
    root = alphas_cumprod.sqrt()
    first, last = root[0].clone(), root[-1].clone()
    root = (root - last) * (first / (first - last))
    rescaled = root**2
    rescaled[-1] = ZERO_SNR_LAST_ALPHA_BAR
    return rescaled


def downcast_alphas_cumprod(alphas_cumprod: Tensor) -> Tensor:
    """alphas_cumprod in fp16, as early checkpoints were sampled; sigmas made from it are computed in fp16 too."""
    return alphas_cumprod.to(torch.float16)


class SigmaMap(Protocol):
    """Sigmas of a model's timesteps, in ascending order, and the maps between sigma and timestep."""

    @property
    def sigmas(self) -> Tensor: ...

    def sigma_to_t(self, sigma: Tensor, quantize: bool | None = None) -> Tensor: ...

    def t_to_sigma(self, t: Tensor) -> Tensor: ...

    def uniform_sigmas(self, steps: int) -> Tensor: ...


HALFWAY = 1e-6
"""In log sigma: less than this from the middle of two known timesteps counts as the middle."""


@dataclass(frozen=True, eq=False)
class DiscreteSchedule:
    """The noise levels of a model trained on T timesteps (T = 1000 for every Stable Diffusion).

    `alphas_cumprod` [T] is fp32, or fp16 for the downcast option. `quantize` makes `sigma_to_t` round to trained
    timesteps unless the call says otherwise.
    """

    alphas_cumprod: Tensor
    quantize: bool = False
    sigmas: Tensor = field(init=False)
    log_sigmas: Tensor = field(init=False)
    log_alphas_reversed: Tensor = field(init=False)  # log sqrt(alpha bar), last timestep first, fp64

    def __post_init__(self) -> None:
        alphas = self.alphas_cumprod.detach().cpu()
        sigmas = ((1 - alphas) / alphas) ** 0.5
        object.__setattr__(self, "sigmas", sigmas.float())
        object.__setattr__(self, "log_sigmas", sigmas.log().float())
        object.__setattr__(self, "log_alphas_reversed", 0.5 * alphas.double().log().flip(0))

    @property
    def sigma_min(self) -> float:
        """Sigma of timestep 0."""
        return self.sigmas[0].item()

    @property
    def sigma_max(self) -> float:
        """Sigma of the last timestep."""
        return self.sigmas[-1].item()

    def sigma_to_t(self, sigma: Tensor, quantize: bool | None = None) -> Tensor:
        """Timesteps of sigmas (any shape, on any device): linear in log sigma, or the nearest trained one."""
        log_sigmas = self.log_sigmas.to(sigma.device)
        if self.quantize if quantize is None else quantize:
            return nearest_index(sigma.log(), log_sigmas)
        return interpolate_index(sigma.log(), log_sigmas)

    def t_to_sigma(self, t: Tensor) -> Tensor:
        """Sigmas (fp32) of timesteps, fractions allowed: linear in log sigma."""
        return interpolate_value(t.float(), self.log_sigmas.to(t.device)).exp()

    def uniform_sigmas(self, steps: int) -> Tensor:
        """`steps` sigmas evenly spaced in timesteps from the last to the first, without the final 0."""
        return self.t_to_sigma(torch.linspace(len(self.sigmas) - 1, 0, steps))

    def vp_sigma_to_t(self, sigma: Tensor) -> Tensor:
        """Timesteps of sigmas [B], linear in log alpha as the DPM-Solver and UniPC papers' noise schedule has it.

        A result within a thousandth of a trained timestep is that timestep: DDIM and PLMS call the model at whole
        numbers exactly. Computed in fp64; fp32 on the device of `sigma`.
        """
        wanted = -0.5 * np.log1p(np.square(sigma.cpu().double().numpy()))
        t = (len(self.sigmas) - 1) - _interpolate_index_numpy(wanted, self.log_alphas_reversed.numpy())
        nearest = t.round()
        found = np.where(np.abs(t - nearest) < 1e-3, nearest, t).astype(np.float32)
        return torch.from_numpy(found).to(sigma.device)

    def vp_t_to_sigma(self, t: Tensor) -> Tensor:
        """The way back: sigmas (fp32) of timesteps `t` (fp64, fractions allowed), linear in log alpha."""
        log_alpha = interpolate_value(t.double(), self.log_alphas_reversed.flip(0))
        return (torch.expm1(-2 * log_alpha)).sqrt().float()


@dataclass(frozen=True, eq=False)
class LcmSchedule:
    """The timesteps that latent consistency models are distilled on (Luo et al. 2023, arXiv:2310.04378).

    Of the base model's T timesteps every `T / kept`-th is known: 19, 39, ... 999 for the usual 50.
    """

    base: DiscreteSchedule
    kept: int = 50
    sigmas: Tensor = field(init=False)
    log_sigmas: Tensor = field(init=False)

    def __post_init__(self) -> None:
        sigmas = self.base.sigmas[self.stride - 1 :: self.stride]
        object.__setattr__(self, "sigmas", sigmas)
        object.__setattr__(self, "log_sigmas", sigmas.log())

    @property
    def stride(self) -> int:
        """Trained timesteps of the base model between two known ones."""
        return len(self.base.sigmas) // self.kept

    def sigma_to_t(self, sigma: Tensor, quantize: bool | None = None) -> Tensor:
        """The known timestep nearest to each sigma in log sigma; there is nothing between them.

        Halfway between two, where SGM Uniform puts the middle of an even number of steps, it is the less
        noisy one, whatever the last bits of `log` and `exp` are on this device.
        """
        del quantize
        nearest = nearest_index(sigma.log() - HALFWAY, self.log_sigmas.to(sigma.device))
        return nearest * self.stride + (self.stride - 1)

    def t_to_sigma(self, t: Tensor) -> Tensor:
        """Sigmas (fp32) of timesteps, linear in log sigma between the known ones."""
        index = ((t - (self.stride - 1)) / self.stride).float().clamp(min=0, max=len(self.sigmas) - 1)
        return interpolate_value(index, self.log_sigmas.to(t.device)).exp()

    def uniform_sigmas(self, steps: int) -> Tensor:
        """`steps` sigmas evenly spaced in timesteps from the last known to the first, without the final 0."""
        last = len(self.base.sigmas) - 1
        return self.t_to_sigma(torch.linspace(last, self.stride - 1, steps))


def nearest_index(value: Tensor, ascending: Tensor) -> Tensor:
    """Index of the entry of `ascending` [T] nearest to each value, as fp32 (the lower one of a tie)."""
    return (value.reshape(1, -1) - ascending[:, None]).abs().argmin(dim=0).reshape(value.shape).float()


def interpolate_index(value: Tensor, ascending: Tensor) -> Tensor:
    """Fractional index at which `ascending` [T], read as a piecewise linear curve, takes each value; clamped.

    On the CPU numpy does it, to equal bits: each of its calls takes a quarter of the time of torch's, and this is
    called for every model call.
    """
    if value.device.type == "cpu" and value.dtype == ascending.dtype:
        return torch.from_numpy(_interpolate_index_numpy(value.numpy(), ascending.numpy()))
    low = (torch.searchsorted(ascending, value.contiguous(), right=True) - 1).clamp(0, len(ascending) - 2)
    below, above = ascending[low], ascending[low + 1]
    return low + ((value - below) / (above - below)).clamp(0, 1)


def _interpolate_index_numpy(value: npt.NDArray[Any], ascending: npt.NDArray[Any]) -> npt.NDArray[Any]:
    low = np.minimum(np.maximum(ascending.searchsorted(value, side="right") - 1, 0), len(ascending) - 2)
    below, above = ascending[low], ascending[low + 1]
    with np.errstate(divide="ignore", invalid="ignore"):  # equal neighbours, where alphas were rounded
        weight = np.minimum(np.maximum((value - below) / (above - below), 0), 1)
    return np.asarray(low.astype(value.dtype) + weight, dtype=value.dtype)


def interpolate_value(index: Tensor, values: Tensor) -> Tensor:
    """Values [T] read as a piecewise linear curve at fractional indices."""
    low, high = index.floor().long(), index.ceil().long()
    weight = index - index.floor()
    return (1 - weight) * values[low] + weight * values[high]
