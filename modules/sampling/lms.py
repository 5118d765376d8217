"""LMS: a linear multistep method that needs one call of the network a step."""

from __future__ import annotations

import itertools

import numpy as np
from torch import Tensor

from modules.sampling.steps import Progress, denoise_at, derivative
from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepNoise

ORDER = 4


def multistep_coefficients(past_sigmas: list[float], sigma: float, sigma_next: float) -> list[float]:
    """Adams-Bashforth weights on a grid of any spacing, one for each of `past_sigmas` (the newest, `sigma`, first).

    Weight j is the integral from `sigma` to `sigma_next` of the Lagrange polynomial that is 1 at past_sigmas[j].
    Gauss-Legendre quadrature with four points is exact for these polynomials of degree 3 or less.
    """
    nodes, weights = np.polynomial.legendre.leggauss(ORDER)
    half = (sigma_next - sigma) / 2
    at = sigma + half * (nodes + 1)
    coefficients = []
    for j, own in enumerate(past_sigmas):
        polynomial = np.ones_like(at)
        for k, other in enumerate(past_sigmas):
            if k != j:
                polynomial *= (at - other) / (own - other)
        coefficients.append(float(half * (weights * polynomial).sum()))
    return coefficients


def sample_lms(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """Linear multistep of order up to 4 over the last derivatives (Hairer, Norsett, Wanner 1993, III.5)."""
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    derivatives: list[Tensor] = []  # the newest first
    for i, (sigma, sigma_next) in enumerate(itertools.pairwise(levels)):
        denoised = denoise_at(denoise, x, sigma)
        progress(sigma, x, denoised)
        derivatives = [derivative(x, sigma, denoised), *derivatives][:ORDER]
        past = levels[max(0, i + 1 - ORDER) : i + 1][::-1]
        for weight, d in zip(multistep_coefficients(past, sigma, sigma_next), derivatives, strict=True):
            x = x + d * weight
    return x
