"""DPM-Solver, singlestep: DPM fast and DPM adaptive. Lu et al. 2022, arXiv:2206.00927.

They integrate the predicted noise in `t = -log(sigma)` and choose their own steps between two sigmas. Times are
[B, 1, 1, 1] tensors in the dtype of x, because in DPM adaptive every image has its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from modules.errors import NumericalError
from modules.sampling.steps import Progress, ancestral_step, eta_or
from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepNoise

ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE = 0.0078, 0.05
FIRST_STEP = 0.05
ACCEPT_SAFETY = 0.81
T_TOLERANCE = 1e-5


@dataclass(frozen=True)
class _Start:
    """Where a step begins: time, state, and the noise predicted there."""

    t: Tensor
    x: Tensor
    eps: Tensor


def _sigma(t: Tensor) -> Tensor:
    return (-t).exp()


def _predict_noise(denoise: Denoise, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The noise predicted at time t [B, 1, 1, 1], and the denoised image."""
    sigma = _sigma(t).expand(x.shape[0], 1, 1, 1)
    denoised = denoise(x, sigma.flatten().float())
    return (x - denoised) / sigma, denoised


def _first_order(start: _Start, t_next: Tensor) -> Tensor:
    """DPM-Solver-1, which is DDIM."""
    return start.x - _sigma(t_next) * torch.expm1(t_next - start.t) * start.eps


def _second_order(start: _Start, t_next: Tensor, eps_r1: Tensor, r1: float) -> Tensor:
    """DPM-Solver-2: corrected by the noise at the fraction r1 of the step."""
    correction = _sigma(t_next) / (2 * r1) * torch.expm1(t_next - start.t) * (eps_r1 - start.eps)
    return _first_order(start, t_next) - correction


def _third_order(start: _Start, t_next: Tensor, eps_r2: Tensor, r2: float) -> Tensor:
    """DPM-Solver-3: corrected by the noise at the fraction r2 of the step."""
    h = t_next - start.t
    correction = _sigma(t_next) / r2 * (torch.expm1(h) / h - 1) * (eps_r2 - start.eps)
    return _first_order(start, t_next) - correction


def _noise_at_fraction(denoise: Denoise, start: _Start, t_next: Tensor, r: float) -> Tensor:
    """The noise predicted after a first-order step over the fraction r."""
    t = start.t + r * (t_next - start.t)
    return _predict_noise(denoise, _first_order(start, t), t)[0]


def _noise_at_second_fraction(
    denoise: Denoise, start: _Start, t_next: Tensor, eps_r1: Tensor, r1: float, r2: float
) -> Tensor:
    """The noise predicted after a second-order step over the fraction r2, made with the noise at r1."""
    h = (t_next - start.t) * r2
    t = start.t + h
    correction = _sigma(t) * (r2 / r1) * (torch.expm1(h) / h - 1) * (eps_r1 - start.eps)
    return _predict_noise(denoise, _first_order(start, t) - correction, t)[0]


def sample_dpm_fast(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """DPM-Solver-fast (appendix D.2): third-order steps, with the remainder of the calls in a lower one.

    As many model calls as the schedule has steps, evenly spaced in log sigma.
    """
    calls = len(sigmas) - 1
    t_end, t_start = _range(x, sigmas, options)
    eta = eta_or(options, 1.0)
    count = calls // 3 + 1
    orders = [3] * (count - 2) + [2, 1] if calls % 3 == 0 else [3] * (count - 1) + [calls % 3]
    times = torch.linspace(t_start.item(), t_end.item(), count + 1, dtype=x.dtype, device="cpu")
    progress = Progress(on_step, len(orders))
    for i, order in enumerate(orders):
        sigma, sigma_next = (_sigma(time).item() for time in (times[i], times[i + 1]))
        t, t_next = (time.to(x.device).reshape(1, 1, 1, 1) for time in (times[i], times[i + 1]))
        t_down, sigma_up = _split_step(t, t_next, t_end, eta)
        eps, denoised = _predict_noise(denoise, x, t)
        progress(sigma, x, denoised)
        x = _step_of_order(denoise, _Start(t, x, eps), t_down, order)
        if eta:
            x = x + noise(sigma, sigma_next) * (options.s_noise * sigma_up)
    return x


def _step_of_order(denoise: Denoise, start: _Start, t_next: Tensor, order: int) -> Tensor:
    """One singlestep solver step with `order` model calls, the first made already."""
    if order == 1:
        return _first_order(start, t_next)
    if order == 2:
        return _second_order(start, t_next, _noise_at_fraction(denoise, start, t_next, 1 / 2), 1 / 2)
    eps_r1 = _noise_at_fraction(denoise, start, t_next, 1 / 3)
    return _third_order(start, t_next, _noise_at_second_fraction(denoise, start, t_next, eps_r1, 1 / 3, 2 / 3), 2 / 3)


def _range(x: Tensor, sigmas: Tensor, options: SamplerOptions) -> tuple[Tensor, Tensor]:
    """(t of the last sigma above 0, t of the first), [1, 1, 1, 1]: from the options, else from the schedule."""
    smallest, largest = options.sigma_range or (sigmas[-2].item(), sigmas[0].item())
    ends = -torch.tensor([smallest, largest], dtype=x.dtype, device=x.device).log()
    return ends[0].reshape(1, 1, 1, 1), ends[1].reshape(1, 1, 1, 1)


def _split_step(t: Tensor, t_next: Tensor, t_end: Tensor, eta: float) -> tuple[Tensor, Tensor]:
    """An ancestral step in t: where to step to, and the deviation of the noise that leads back to `t_next`."""
    if not eta:
        return t_next, torch.zeros_like(t_next)
    pairs = zip(_sigma(t).flatten().tolist(), _sigma(t_next).flatten().tolist(), strict=True)
    down = torch.tensor([ancestral_step(a, b, eta)[0] for a, b in pairs], dtype=t.dtype, device=t.device)
    t_down = torch.minimum(t_end, -down.log().reshape(t.shape))
    return t_down, (_sigma(t_next) ** 2 - _sigma(t_down) ** 2).clamp(min=0).sqrt()


@dataclass
class _StepSize:
    """Step size control of one image: an integral controller on the error (Hairer, Norsett, Wanner 1993, II.4)."""

    order: float
    h: float = FIRST_STEP

    def accepts(self, error: float) -> bool:
        """Change `h` after a step with this error; True where the step is good enough to keep."""
        factor = (1 / (error + 1e-8)) ** (1 / self.order)
        factor = 1 + math.atan(factor - 1)
        self.h *= factor
        return factor >= ACCEPT_SAFETY


def sample_dpm_adaptive(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """DPM-Solver-23 with adaptive steps (appendix C). The number of steps asked for means nothing.

    Each image of a batch has its own step size and draws noise only for its own steps, so it is the same image as
    alone; images that are done wait for the others. Raises `NumericalError` where the model returns NaN.
    """
    t_end, t_start = _range(x, sigmas, options)
    eta = eta_or(options, 1.0)
    sizes = [_StepSize(1.5 if eta else 3.0) for _ in x]
    t = t_start.repeat(x.shape[0], 1, 1, 1)
    x_low_last = x
    progress = Progress(on_step, len(sigmas) - 1)
    while bool((running := t < t_end - T_TOLERANCE).any()):
        h = torch.tensor([size.h for size in sizes], dtype=x.dtype, device=x.device).reshape(t.shape)
        # Images that are done take some step too; its result is dropped.
        t_next = torch.where(running, torch.minimum(t_end, t + h), t + FIRST_STEP)
        t_down, sigma_up = _split_step(t, t_next, torch.maximum(t_end, t_next), eta)
        eps, denoised = _predict_noise(denoise, x, t)
        progress(_sigma(t).max().item(), x, denoised)
        x_low, x_high = _low_and_high_order(denoise, _Start(t, x, eps), t_down)
        errors = _errors(x_low, x_high, x_low_last)
        rows = running.flatten().tolist()
        kept = [run and size.accepts(error) for run, size, error in zip(rows, sizes, errors, strict=True)]
        if eta and any(kept):
            fresh = noise(_sigma(t).max().item(), _sigma(t_next).max().item(), rows=kept)
            x_high = x_high + fresh * (options.s_noise * sigma_up)
        keep = torch.tensor(kept, device=x.device).reshape(t.shape)
        x, t = torch.where(keep, x_high, x), torch.where(keep, t_next, t)
        x_low_last = torch.where(keep, x_low, x_low_last)
    return x


def _low_and_high_order(denoise: Denoise, start: _Start, t_next: Tensor) -> tuple[Tensor, Tensor]:
    """The second- and third-order result of the same step; they share their model calls."""
    eps_r1 = _noise_at_fraction(denoise, start, t_next, 1 / 3)
    eps_r2 = _noise_at_second_fraction(denoise, start, t_next, eps_r1, 1 / 3, 2 / 3)
    return _second_order(start, t_next, eps_r1, 1 / 3), _third_order(start, t_next, eps_r2, 2 / 3)


def _errors(x_low: Tensor, x_high: Tensor, x_low_last: Tensor) -> list[float]:
    """Root mean square difference of the two orders in units of the tolerance, one per image."""
    scale = torch.clamp(RELATIVE_TOLERANCE * torch.maximum(x_low.abs(), x_low_last.abs()), min=ABSOLUTE_TOLERANCE)
    errors: list[float] = ((x_low - x_high) / scale).square().flatten(1).mean(1).sqrt().tolist()
    if not all(math.isfinite(error) for error in errors):
        raise NumericalError(
            "DPM adaptive got NaN or infinity from the model, so no step size is small enough. "
            "Try full precision for the model, or another sampler."
        )
    return errors
