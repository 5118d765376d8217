"""DPM-Solver++ without a Brownian tree: 2M and 2S ancestral. Lu et al. 2022, arXiv:2211.01095.

Both work in `t = -log(sigma)`, half the log signal-to-noise ratio, and integrate the predicted x0.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from modules.sampling.steps import Progress, ancestral_step, denoise_at, eta_or, move
from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepNoise


def exponential_step(x: Tensor, denoised: Tensor, sigma: float, sigma_next: float) -> Tensor:
    """The exact step for a prediction that stays constant: `x` shrinks towards `denoised` by sigma_next / sigma."""
    return torch.lerp(denoised, x, sigma_next / sigma)


def sample_dpmpp_2m(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """DPM-Solver++(2M): algorithm 2 of the paper; a first-order step at the start and to sigma 0."""
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    previous: Tensor | None = None
    h_last = 0.0
    for sigma, sigma_next in itertools.pairwise(levels):
        denoised = denoise_at(denoise, x, sigma)
        progress(sigma, x, denoised)
        h = math.log(sigma / sigma_next) if sigma_next > 0 else math.inf
        prediction = denoised
        if previous is not None and sigma_next > 0:
            weight = h / (2 * h_last)
            prediction = (1 + weight) * denoised - weight * previous
        x = exponential_step(x, prediction, sigma, sigma_next)
        previous, h_last = denoised, h
    return x


def sample_dpmpp_2s_ancestral(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """DPM-Solver++(2S), algorithm 1 of the paper with the midpoint r = 1/2, in ancestral steps."""
    eta = eta_or(options, 1.0)
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    for sigma, sigma_next in itertools.pairwise(levels):
        denoised = denoise_at(denoise, x, sigma)
        progress(sigma, x, denoised)
        sigma_down, sigma_up = ancestral_step(sigma, sigma_next, eta)
        if sigma_down > 0:
            sigma_mid = math.sqrt(sigma * sigma_down)
            x_mid = exponential_step(x, denoised, sigma, sigma_mid)
            denoised = denoise_at(denoise, x_mid, sigma_mid)
        x = exponential_step(x, denoised, sigma, sigma_down)
        if sigma_next > 0:
            x = move(x, noise(sigma, sigma_next), options.s_noise * sigma_up)
    return x
