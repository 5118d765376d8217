"""Forecasting the denoiser's output on some steps in place of calling the model: Spectrum, arXiv:2603.01623.

Along a deterministic trajectory what a model predicts (its noise or velocity, `(x - denoised) / sigma`) is a smooth
function of the logarithm of sigma. Some Chebyshev polynomials are fitted to the outputs so far by ridge regression, and
their value at the next step, blended with the straight line through the last two outputs, stands for a call. Calls are
made at the first steps, then at ever rarer ones, and at the last: what is left out there, no later step makes up for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from modules.sampling.catalog import Family, SamplerSpec

DEGREE = 3
RIDGE = 0.1
BLEND = 0.4
WARM_UP = 4
STOP_AT = 0.9
MAX_HISTORY = 12
MIN_STEPS = 8
LAST_SIGMA = 0.03
"""Where trajectories end, nearly; it only says how far apart two steps are."""


@dataclass(frozen=True)
class ForecastOptions:
    """`strength` above 0, up to 1: after the first `warm_up` calls one is made every `1 + 2 * strength` steps, and
    `strength` more after each, so that 0.5 is the paper's window of 2 that grows by 0.5. From `stop_at` of the steps on
    all are calls. `degree` and `ridge` of the fit; `blend` of its value over that of the straight line."""

    strength: float
    degree: int = DEGREE
    ridge: float = RIDGE
    blend: float = BLEND
    warm_up: int = WARM_UP
    stop_at: float = STOP_AT


def forecast_problem(spec: SamplerSpec, steps: int, eta: float, churn: float) -> str | None:
    """Why the outputs of this sampling run cannot be forecast; None if they can."""
    if spec.renoises or spec.family is Family.LCM or spec.brownian_noise or eta > 0 or (churn > 0 and spec.takes):
        return f"{spec.name} adds noise at its steps"
    if spec.second_order or spec.uses_sigma_range or spec.needs_uncond:
        return f"{spec.name} does not call the model once per step"
    if steps < MIN_STEPS:
        return f"there are fewer than {MIN_STEPS} steps"
    return None


def called_steps(total: int, options: ForecastOptions) -> list[bool]:
    """For each of `total` steps whether the model is called."""
    window, called, since = 1.0 + 2.0 * options.strength, [], 0
    last = min(total - 1, math.ceil(total * options.stop_at))
    for step in range(total):
        since += 1
        call = step < options.warm_up or step >= last or since >= int(window)
        if call and step >= options.warm_up:
            window += options.strength
        called.append(call)
        if call:
            since = 0
    return called


@dataclass
class Forecast:
    """The outputs of one sampling run of `total` steps; `forecast` says how many were forecast."""

    total: int
    options: ForecastOptions
    forecast: int = 0
    _called: list[bool] = field(init=False)
    _first: float | None = None
    _times: list[float] = field(default_factory=list)
    _outputs: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._called = called_steps(self.total, self.options)

    def denoised(self, step: int, x: Tensor, sigma: Tensor) -> Tensor | None:
        """The forecast of what the model makes of `x` [B, C, ...] at `sigma` [B], as denoised; None: call it."""
        if step >= self.total or self._called[step] or len(self._outputs) < self.options.warm_up:
            return None
        if self._outputs[0].shape != x.shape:
            self.reset()
            return None
        weights = forecast_weights(self._times, self._time(sigma), self.options)
        output = torch.zeros_like(self._outputs[0])
        for weight, known in zip(weights, self._outputs, strict=True):
            output.add_(known, alpha=weight)
        self.forecast += 1
        return x - _per_image(sigma, x) * output.to(x.dtype)

    def take(self, x: Tensor, sigma: Tensor, denoised: Tensor) -> None:
        """A call was made, and this came of it."""
        self._times.append(self._time(sigma))
        self._outputs.append(((x - denoised) / _per_image(sigma, x)).float())
        del self._times[:-MAX_HISTORY], self._outputs[:-MAX_HISTORY]

    def reset(self) -> None:
        """What the model predicts is another thing from now on (another prompt, another model): begin anew."""
        self._times.clear()
        self._outputs.clear()

    def _time(self, sigma: Tensor) -> float:
        """-1 at the first sigma that was seen, 1 where trajectories end."""
        now = math.log(max(float(sigma.max()), LAST_SIGMA))
        if self._first is None:
            self._first = now
        return 2.0 * (self._first - now) / max(1.0, self._first - math.log(LAST_SIGMA)) - 1.0


def forecast_weights(times: Sequence[float], time: float, options: ForecastOptions) -> list[float]:
    """How much each of the outputs at `times` weighs in the forecast at `time`: both ways are linear in them. Times lie
    within -1 to 1; they sum to 1, as neither way may change a constant."""
    basis = _chebyshev(times, options.degree)
    penalty = torch.eye(options.degree + 1, dtype=torch.float64) * options.ridge / len(times)
    penalty[0, 0] = 0.0  # the mean is not shrunk
    inverse = torch.linalg.solve(basis.t() @ basis + penalty, basis.t())
    fitted = (_chebyshev([time], options.degree) @ inverse)[0]
    line = torch.zeros(len(times), dtype=torch.float64)
    before = times[-1] - times[-2]
    share = (time - times[-1]) / before if before else 0.0
    line[-1], line[-2] = 1.0 + share, -share
    weights: list[float] = (options.blend * fitted + (1.0 - options.blend) * line).tolist()
    return weights


def _chebyshev(times: Sequence[float], degree: int) -> Tensor:
    """T_0 to T_degree at each time, float64 [times, degree + 1]."""
    t = torch.tensor(times, dtype=torch.float64)
    values = [torch.ones_like(t), t]
    while len(values) <= degree:
        values.append(2 * t * values[-1] - values[-2])
    return torch.stack(values[: degree + 1], dim=1)


def _per_image(sigma: Tensor, x: Tensor) -> Tensor:
    return sigma.to(x.device, torch.float32).clamp_min(1e-6).reshape(-1, *(1,) * (x.ndim - 1))
