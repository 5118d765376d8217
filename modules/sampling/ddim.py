"""DDIM and DDIM CFG++. The papers write variance preserving x with alpha bar; here `sigma^2 = (1 - a) / a` and
`x = x_vp / sqrt(a)`, which turns their steps into `x0 + direction`. The result is variance preserving at the last
timestep, as the decoder is given it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from torch import Tensor

from modules.sampling.steps import Progress, denoise_at, derivative, eta_or
from modules.sampling.types import Denoise, GuidedDenoise, OnStep, SamplerOptions, StepNoise


def to_variance_preserving(x: Tensor, sigma: float) -> Tensor:
    """`x0 + sigma * noise` as `sqrt(a) * x0 + sqrt(1 - a) * noise`."""
    return x / math.sqrt(1 + sigma**2)


def ddim_noise(sigma: float, sigma_next: float, eta: float) -> float:
    """Deviation of the noise in a step, in the scaling of x: equation 16 of the paper over sqrt(a_next)."""
    alpha, alpha_next = 1 / (1 + sigma**2), 1 / (1 + sigma_next**2)
    variance = (1 - alpha_next) / (1 - alpha) * (1 - alpha / alpha_next)
    return eta * math.sqrt(variance / alpha_next)


def sample_ddim(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """Song et al. 2020 (arXiv:2010.02502), equation 12: to x0, then back along the predicted noise."""
    return _walk(denoise, x, sigmas, options, noise, on_step, lambda denoised: denoised)


def sample_ddim_cfgpp(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """CFG++ (Chung et al. 2024, arXiv:2406.08070), algorithm 2: back along the *unconditional* predicted noise.

    The caller multiplies the guidance scale with the spec's `cfg_scale_multiplier`, and `denoise` must be a
    `GuidedDenoise`; raises TypeError otherwise.
    """
    if not isinstance(denoise, GuidedDenoise):
        raise TypeError("DDIM CFG++ needs a denoiser with `uncond_denoised()`: it steps along the unconditional noise")
    guided = denoise
    return _walk(denoise, x, sigmas, options, noise, on_step, lambda _: guided.uncond_denoised())


def _walk(
    denoise: Denoise,
    x: Tensor,
    sigmas: Tensor,
    options: SamplerOptions,
    noise: StepNoise,
    on_step: OnStep,
    direction_from: Callable[[Tensor], Tensor],
) -> Tensor:
    """DDIM steps; `direction_from` picks the x0 prediction that the noise direction is taken from."""
    eta = eta_or(options, 0.0)
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    for sigma, sigma_next in itertools.pairwise(levels):
        denoised = denoise_at(denoise, x, sigma)
        progress(sigma, x, denoised)
        noise_sigma = ddim_noise(sigma, sigma_next, eta)
        direction = derivative(x, sigma, direction_from(denoised))
        x = denoised + math.sqrt(max(sigma_next**2 - noise_sigma**2, 0.0)) * direction
        if eta:
            x = x + noise_sigma * noise(sigma, sigma_next)
    return to_variance_preserving(x, levels[-1]) if levels else x
