"""DPM-Solver++ for the reverse SDE: DPM++ SDE, 2M SDE, 2M SDE Heun and 3M SDE, with noise from a Brownian tree.

Lu et al. 2022, arXiv:2211.01095, and the SDE variants of K. Crowson's k-diffusion. `h` is a step in
`t = -log(sigma)`, eta the amount of noise: 0 gives the ODE, 1 the reverse SDE.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

import torch
from torch import Tensor

from modules.sampling.dpmpp import exponential_step
from modules.sampling.steps import Progress, ancestral_step, denoise_at, eta_or, move
from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepNoise


def _midpoints(sigmas: Tensor) -> tuple[list[float], list[float]]:
    """Sigmas as they come back from `t = -log(sigma)`, and the ones half a step in t further, both in fp32.

    fp32 on purpose: a Brownian path is so rough that noise between sigmas a millionth apart differs visibly.
    """
    t = -sigmas.float().cpu().log()
    middle = t[:-1] + (t[1:] - t[:-1]) * 0.5
    return (-t).exp().tolist(), (-middle).exp().tolist()


def sample_dpmpp_sde(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """Two stochastic half steps with the prediction at the midpoint (r = 1/2): second order, two calls per step."""
    eta = eta_or(options, 1.0)
    levels, middles = _midpoints(sigmas)
    exact = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    for i in range(len(levels) - 1):
        sigma, sigma_mid, sigma_next = levels[i], middles[i], levels[i + 1]
        denoised = denoise_at(denoise, x, exact[i])
        progress(exact[i], x, denoised)
        if sigma_next == 0:
            x = denoised
            continue
        sigma_down, sigma_up = ancestral_step(sigma, sigma_mid, eta)
        x_mid = exponential_step(x, denoised, sigma, sigma_down)
        x_mid = move(x_mid, noise(sigma, sigma_mid), options.s_noise * sigma_up)
        denoised = denoise_at(denoise, x_mid, sigma_mid)
        sigma_down, sigma_up = ancestral_step(sigma, sigma_next, eta)
        x = exponential_step(x, denoised, sigma, sigma_down)
        x = move(x, noise(sigma, sigma_next), options.s_noise * sigma_up)
    return x


def sample_dpmpp_2m_sde(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """SDE-DPM-Solver++(2M) with the midpoint correction."""
    return _dpmpp_2m_sde(denoise, x, sigmas, options, noise, on_step, "midpoint")


def sample_dpmpp_2m_sde_heun(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """SDE-DPM-Solver++(2M) with Heun's correction."""
    return _dpmpp_2m_sde(denoise, x, sigmas, options, noise, on_step, "heun")


def _dpmpp_2m_sde(
    denoise: Denoise,
    x: Tensor,
    sigmas: Tensor,
    options: SamplerOptions,
    noise: StepNoise,
    on_step: OnStep,
    solver_type: Literal["midpoint", "heun"],
) -> Tensor:
    """A first-order exponential step plus a correction from the last two predictions, then noise."""
    eta = eta_or(options, 1.0)
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    previous: Tensor | None = None
    h_last = 0.0
    for sigma, sigma_next in itertools.pairwise(levels):
        denoised = denoise_at(denoise, x, sigma)
        progress(sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        decay = -math.expm1(-h - eta * h)
        x = torch.lerp(x, denoised, decay)
        if previous is not None:
            weight = 0.5 * decay if solver_type == "midpoint" else 1 - decay / (h + eta * h)
            x = move(x, denoised - previous, weight * h / h_last)
        if eta:
            x = move(x, noise(sigma, sigma_next), _noise_scale(sigma_next, h, options, eta))
        previous, h_last = denoised, h
    return x


def sample_dpmpp_3m_sde(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """SDE-DPM-Solver++(3M): corrections from up to three predictions by the exponential integrator's phi functions."""
    eta = eta_or(options, 1.0)
    levels = sigmas.tolist()
    progress = Progress(on_step, len(levels) - 1)
    history: list[tuple[Tensor, float]] = []  # (prediction, length of the step made with it), the newest first
    for sigma, sigma_next in itertools.pairwise(levels):
        denoised = denoise_at(denoise, x, sigma)
        progress(sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        h_eta = h * (eta + 1)
        x = torch.lerp(x, denoised, -math.expm1(-h_eta))
        phi_2 = math.expm1(-h_eta) / h_eta + 1
        phi_3 = phi_2 / h_eta - 0.5
        if len(history) == 1:
            x = x + phi_2 * (h / history[0][1]) * (denoised - history[0][0])
        elif len(history) == 2:
            first, second = _divided_differences(denoised, history, h)
            x = x + phi_2 * first - phi_3 * second
        if eta:
            x = move(x, noise(sigma, sigma_next), _noise_scale(sigma_next, h, options, eta))
        history = [(denoised, h), *history][:2]
    return x


def _divided_differences(denoised: Tensor, history: list[tuple[Tensor, float]], h: float) -> tuple[Tensor, Tensor]:
    """First and second derivative of the prediction in units of `h`, from three predictions."""
    (last, h_1), (before, h_2) = history
    r0, r1 = h_1 / h, h_2 / h
    slope_0, slope_1 = (denoised - last) / r0, (last - before) / r1
    second = (slope_0 - slope_1) / (r0 + r1)
    return slope_0 + second * r0, second


def _noise_scale(sigma_next: float, h: float, options: SamplerOptions, eta: float) -> float:
    """Deviation of the noise that a step of length `h` adds."""
    return sigma_next * math.sqrt(-math.expm1(-2 * eta * h)) * options.s_noise
