"""LMS: a linear multistep method that needs one model call per step."""

from __future__ import annotations

import itertools
import math

import numpy as np
from torch import Tensor

from modules.sampling.steps import Progress, denoise_at, derivative, move
from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepNoise

ORDER = 4
# Four points integrate polynomials up to degree 7 exactly; those here have degree 3 at most.
_NODES, _WEIGHTS = (tuple(row.tolist()) for row in np.polynomial.legendre.leggauss(ORDER))


def multistep_coefficients(past_sigmas: list[float], sigma: float, sigma_next: float) -> list[float]:
    """Adams-Bashforth weights on a grid of any spacing, one for each of `past_sigmas` (the newest, `sigma`, first).

    Weight j is the integral from `sigma` to `sigma_next` of the Lagrange polynomial that is 1 at past_sigmas[j], by
    Gauss-Legendre quadrature.
    """
    half = (sigma_next - sigma) / 2
    coefficients = []
    for own in past_sigmas:
        others = [other for other in past_sigmas if other != own]
        values = (
            weight * math.prod((sigma + half * (node + 1) - other) / (own - other) for other in others)
            for node, weight in zip(_NODES, _WEIGHTS, strict=True)
        )
        coefficients.append(half * sum(values))
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
            x = move(x, d, weight)
    return x
