"""LCM: the multistep sampler of consistency models."""

from __future__ import annotations

import itertools

from torch import Tensor

from modules.sampling.steps import Progress, denoise_at
from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepNoise


def sample_lcm(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """Jump to the predicted x0, noise it to the next sigma, repeat: Luo et al. 2023 (arXiv:2310.04378), algorithm 3.

    `denoise` must carry the boundary condition (`denoisers.lcm_denoise`).
    """
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    for sigma, sigma_next in itertools.pairwise(levels):
        denoised = denoise_at(denoise, x, sigma)
        progress(sigma, x, denoised)
        x = denoised + sigma_next * noise(sigma, sigma_next) if sigma_next > 0 else denoised
    return x
