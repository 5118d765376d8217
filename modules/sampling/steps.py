"""Small steps that many samplers share: calling the denoiser, churn, the split of an ancestral step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepInfo, StepNoise


def sigma_batch(x: Tensor, sigma: float) -> Tensor:
    """Sigma for every image of a batch, [B] fp32 on the CPU: whoever looks at it need not wait for the device."""
    return torch.full((x.shape[0],), sigma)


def denoise_at(denoise: Denoise, x: Tensor, sigma: float) -> Tensor:
    """Call the denoiser with one sigma for the whole batch."""
    return denoise(x, sigma_batch(x, sigma))


def derivative(x: Tensor, sigma: float, denoised: Tensor) -> Tensor:
    """dx/dsigma of the probability flow ODE, which is also the predicted noise: `(x - denoised) / sigma`."""
    return (x - denoised) / sigma


def move(x: Tensor, direction: Tensor, distance: float) -> Tensor:
    """`x + direction * distance` in one pass over memory."""
    return torch.add(x, direction, alpha=distance)


class Progress:
    """Reports steps to the caller's `on_step`, counting them."""

    def __init__(self, on_step: OnStep, total: int) -> None:
        self._on_step = on_step
        self._index = 0
        self._total = total

    def __call__(self, sigma: float, x: Tensor, denoised: Tensor) -> None:
        """Report one step; whatever `on_step` raises passes through."""
        info = StepInfo(self._index, max(self._total, self._index + 1), sigma, x, denoised)
        self._index += 1
        self._on_step(info)


def ancestral_step(sigma_from: float, sigma_to: float, eta: float) -> tuple[float, float]:
    """Split a step into (sigma_down, sigma_up): step down to the one, add noise of the other, arrive at `sigma_to`.

    With eta 0 there is no noise; with eta 1 it is the ancestral sampling of Song et al. 2021 (arXiv:2011.13456).
    """
    if eta == 0 or sigma_to == 0:
        return sigma_to, 0.0
    variance = sigma_to**2 * (sigma_from**2 - sigma_to**2) / sigma_from**2
    sigma_up = min(sigma_to, eta * math.sqrt(max(variance, 0.0)))
    return math.sqrt(sigma_to**2 - sigma_up**2), sigma_up


def churn(x: Tensor, sigma: float, steps: int, options: SamplerOptions, noise: StepNoise) -> tuple[Tensor, float]:
    """Raise the noise level before a step: Karras et al. 2022 (arXiv:2206.00364), algorithm 2, lines 4 to 6.

    Returns the noised x and its sigma. Noise is drawn at every step while churn is on, also outside
    s_tmin .. s_tmax, so that these limits do not shift later draws.
    """
    if options.s_churn <= 0:
        return x, sigma
    eps = noise(sigma, sigma) * options.s_noise
    if not options.s_tmin <= sigma <= options.s_tmax:
        return x, sigma
    sigma_hat = sigma * (1 + min(options.s_churn / steps, math.sqrt(2) - 1))
    return x + eps * math.sqrt(sigma_hat**2 - sigma**2), sigma_hat


def eta_or(options: SamplerOptions, default: float) -> float:
    """The eta asked for, or the sampler's own."""
    return default if options.eta is None else options.eta
