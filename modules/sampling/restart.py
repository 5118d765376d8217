"""Restart: Heun steps that go back up in noise and down again near the end. Xu et al. 2023, arXiv:2306.14878."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from modules.sampling.heun_dpm2 import heun_step
from modules.sampling.steps import Progress, denoise_at
from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepNoise

RESTART_LOW, RESTART_HIGH = 0.1, 2.0
MIN_STEPS = 20
RHO = 7.0


def karras_levels(steps: int, sigma_min: float, sigma_max: float) -> list[float]:
    """`steps` fp32 sigmas of the Karras schedule with rho 7, without the final 0."""
    ramp = torch.linspace(0, 1, steps)
    low, high = sigma_min ** (1 / RHO), sigma_max ** (1 / RHO)
    levels: list[float] = ((high + ramp * (low - high)) ** RHO).tolist()
    return levels


def restart_run(levels: list[float]) -> list[tuple[float, float]]:
    """The (sigma, next sigma) pairs to sample over. A pair that begins above where the last ended asks for noise first.

    From 20 steps on, some of the steps are saved for going from sigma 0.1 back to 2 and down again: 9 of them once,
    or from 36 steps on a quarter of them twice. The main run is then a Karras schedule over the same range.
    """
    steps = len(levels) - 1
    if steps < MIN_STEPS:
        return list(itertools.pairwise(levels))
    restart_steps, times = (steps // 4, 2) if steps >= 36 else (9, 1)
    levels = [*karras_levels(steps - restart_steps * times, levels[-2], levels[0]), 0.0]
    low, high = _nearest(levels, RESTART_LOW), _nearest(levels, RESTART_HIGH)
    sampling_run = list(itertools.pairwise(levels))
    if high >= low:
        return sampling_run
    again = karras_levels(restart_steps + 1, levels[low], levels[high])
    return sampling_run[:low] + list(itertools.pairwise(again)) * times + sampling_run[low:]


def _nearest(levels: list[float], sigma: float) -> int:
    """Index of the level nearest to `sigma`."""
    return min(range(len(levels)), key=lambda i: abs(levels[i] - sigma))


def sample_restart(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """Algorithm 1 of the paper over Heun steps; with fewer than 20 steps it is Heun without churn."""
    sampling_run = restart_run(sigmas.tolist())
    progress = Progress(on_step, len(sampling_run))
    reached = sampling_run[0][0] if sampling_run else 0.0
    for sigma, sigma_next in sampling_run:
        if sigma > reached:
            x = x + noise(reached, sigma) * math.sqrt(sigma**2 - reached**2)
        denoised = denoise_at(denoise, x, sigma)
        progress(sigma, x, denoised)
        x = heun_step(denoise, x, denoised, sigma, sigma_next)
        reached = sigma_next
    return x
