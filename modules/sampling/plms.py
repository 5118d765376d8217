"""PLMS: DDIM steps along a multistep average of predicted noises. Scaling as in `ddim`."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from modules.sampling.ddim import to_variance_preserving
from modules.sampling.steps import Progress, denoise_at, derivative, move
from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepNoise

# Adams-Bashforth weights for the newest noise first, by the number of earlier ones.
_WEIGHTS = {
    1: (3 / 2, -1 / 2),
    2: (23 / 12, -16 / 12, 5 / 12),
    3: (55 / 24, -59 / 24, 37 / 24, -9 / 24),
}


def sample_plms(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """Liu et al. 2022 (arXiv:2202.09778), equations 9 to 12; the first step is an improved Euler step (two calls)."""
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    epsilons: list[Tensor] = []  # the newest first
    for sigma, sigma_next in itertools.pairwise(levels):
        denoised = denoise_at(denoise, x, sigma)
        progress(sigma, x, denoised)
        epsilons = [derivative(x, sigma, denoised), *epsilons][:4]
        if len(epsilons) == 1:
            x_next = move(x, epsilons[0], sigma_next - sigma)
            average = (epsilons[0] + derivative(x_next, sigma_next, denoise_at(denoise, x_next, sigma_next))) / 2
        else:
            average = torch.zeros_like(x)
            for epsilon, weight in zip(epsilons, _WEIGHTS[len(epsilons) - 1], strict=True):
                average = move(average, epsilon, weight)
        x = move(x, average, sigma_next - sigma)
    return to_variance_preserving(x, levels[-1]) if levels else x
