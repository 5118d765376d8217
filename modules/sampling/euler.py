"""Euler and Euler ancestral: one model call per step."""

from __future__ import annotations

import itertools

from torch import Tensor

from modules.sampling.steps import Progress, ancestral_step, churn, denoise_at, derivative, eta_or, move
from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepNoise


def sample_euler(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """Euler steps with churn: Karras et al. 2022 (arXiv:2206.00364), algorithm 2 without its second half."""
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    for sigma, sigma_next in itertools.pairwise(levels):
        x, sigma_hat = churn(x, sigma, len(levels) - 1, options, noise)
        denoised = denoise_at(denoise, x, sigma_hat)
        progress(sigma_hat, x, denoised)
        x = move(x, derivative(x, sigma_hat, denoised), sigma_next - sigma_hat)
    return x


def sample_euler_ancestral(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """Euler steps to below the next sigma, then noise up to it (ancestral sampling). It has no s_noise."""
    eta = eta_or(options, 1.0)
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    for sigma, sigma_next in itertools.pairwise(levels):
        denoised = denoise_at(denoise, x, sigma)
        progress(sigma, x, denoised)
        sigma_down, sigma_up = ancestral_step(sigma, sigma_next, eta)
        x = move(x, derivative(x, sigma, denoised), sigma_down - sigma)
        if sigma_next > 0:
            x = move(x, noise(sigma, sigma_next), sigma_up)
    return x
