"""Heun, DPM2 and DPM2 ancestral: second order, two model calls per step."""

from __future__ import annotations

import itertools
import math

from torch import Tensor

from modules.sampling.steps import Progress, ancestral_step, churn, denoise_at, derivative, eta_or, move
from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepNoise


def heun_step(denoise: Denoise, x: Tensor, denoised: Tensor, sigma: float, sigma_next: float) -> Tensor:
    """Trapezoidal step from `sigma`, where x was denoised already; an Euler step where it ends at 0."""
    d = derivative(x, sigma, denoised)
    x_euler = move(x, d, sigma_next - sigma)
    if sigma_next == 0:
        return x_euler
    d_next = derivative(x_euler, sigma_next, denoise_at(denoise, x_euler, sigma_next))
    return move(x, d + d_next, (sigma_next - sigma) / 2)


def midpoint_step(denoise: Denoise, x: Tensor, denoised: Tensor, sigma: float, sigma_next: float) -> Tensor:
    """Step along the derivative at the geometric mean of the two sigmas; an Euler step where it ends at 0."""
    d = derivative(x, sigma, denoised)
    if sigma_next == 0:
        return move(x, d, sigma_next - sigma)
    sigma_mid = math.sqrt(sigma * sigma_next)
    x_mid = move(x, d, sigma_mid - sigma)
    d_mid = derivative(x_mid, sigma_mid, denoise_at(denoise, x_mid, sigma_mid))
    return move(x, d_mid, sigma_next - sigma)


def sample_heun(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """Heun steps with churn: Karras et al. 2022 (arXiv:2206.00364), algorithm 2."""
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    for sigma, sigma_next in itertools.pairwise(levels):
        x, sigma_hat = churn(x, sigma, len(levels) - 1, options, noise)
        denoised = denoise_at(denoise, x, sigma_hat)
        progress(sigma_hat, x, denoised)
        x = heun_step(denoise, x, denoised, sigma_hat, sigma_next)
    return x


def sample_dpm_2(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """Midpoint steps as DPM-Solver-2 (Lu et al. 2022, arXiv:2206.00927), with the churn of Karras et al. 2022."""
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    for sigma, sigma_next in itertools.pairwise(levels):
        x, sigma_hat = churn(x, sigma, len(levels) - 1, options, noise)
        denoised = denoise_at(denoise, x, sigma_hat)
        progress(sigma_hat, x, denoised)
        x = midpoint_step(denoise, x, denoised, sigma_hat, sigma_next)
    return x


def sample_dpm_2_ancestral(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """DPM2's midpoint steps to below the next sigma, then noise up to it."""
    eta = eta_or(options, 1.0)
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    for sigma, sigma_next in itertools.pairwise(levels):
        denoised = denoise_at(denoise, x, sigma)
        progress(sigma, x, denoised)
        sigma_down, sigma_up = ancestral_step(sigma, sigma_next, eta)
        x = midpoint_step(denoise, x, denoised, sigma, sigma_down)
        if sigma_down > 0:
            x = move(x, noise(sigma, sigma_next), options.s_noise * sigma_up)
    return x
