"""Forecasting the denoiser's output on some steps in place of calling the model: Spectrum, arXiv:2603.01623.

Along a deterministic trajectory what a model predicts (its noise or velocity, `(x - denoised) / sigma`) is a function
of the logarithm of sigma. Some Chebyshev polynomials are fitted to the outputs so far by ridge regression, and their
value at the next step, blended with the straight line through the last two outputs, stands for a call.

How smooth that function is depends on the sampler: with Euler outputs continue their course, with DPM++ 2M and its like
they swing around it, and the last output is the better forecast. So each call first shows how much of the change that
would have been forecast came true, image by image, and forecasts keep that share of theirs (least squares).

An error of the output moves the image by the error times what sigma falls at the step, so that nearly all of it is done
while sigma is large: the model is called at all of the first steps, then ever more rarely. With the paper's schedule
(four calls, then windows of 2, 2.5, 3 ... steps) images by DPM++ 2M and Karras are 18 dB PSNR from those of all calls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from modules.sampling.catalog import Family, SamplerSpec, ScheduleSpec, effective_schedule

DEGREE = 3
RIDGE = 0.1
BLEND = 0.4
MIN_WARM_UP = 4
MOST_CALLED, LESS_CALLED = 0.7, 0.5
"""The share of the steps that are all called first, at a strength of 0, and how much smaller it is at 1."""
MAX_HISTORY = 12
MAX_LAST_SIGMA = 0.05
"""Up to this the last step can be forecast too: its output is hardly more than what is there already."""
MIN_STEPS = 8
TINY = 1e-20
LAST_SIGMA = 0.03
"""Where trajectories end, nearly; it only says how far apart two steps are."""


@dataclass(frozen=True)
class ForecastOptions:
    """`strength` above 0, up to 1: how few calls are made, see `called_steps`. `degree` and `ridge` of the fit; `blend`
    of its value over that of the straight line."""

    strength: float
    degree: int = DEGREE
    ridge: float = RIDGE
    blend: float = BLEND

    def warm_up(self, total: int) -> int:
        """Return how many of so many steps are all called at first."""
        return max(MIN_WARM_UP, math.ceil(round(total * (MOST_CALLED - LESS_CALLED * self.strength), 6)))


def forecast_problem(spec: SamplerSpec, steps: int, eta: float, churn: float) -> str | None:
    """Why the outputs of this sampling run cannot be forecast; None if they can."""
    if spec.renoises or spec.family is Family.LCM or spec.brownian_noise or eta > 0 or (churn > 0 and spec.takes):
        return f"{spec.name} adds noise at its steps"
    if spec.second_order or spec.uses_sigma_range or spec.needs_uncond:
        return f"{spec.name} does not call the model once per step"
    if steps < MIN_STEPS:
        return f"there are fewer than {MIN_STEPS} steps"
    return None


def usable_strength(spec: SamplerSpec, schedule: ScheduleSpec, strength: float) -> float:
    """Return as much of a strength as a sampler bears: half of it for solvers of several steps, whose outputs swing
    most; three quarters on the schedule that such a solver is meant for, which does most of its steps where little is
    left."""
    if not spec.multistep:
        return strength
    return strength * (0.75 if effective_schedule(spec, schedule).name == spec.default_scheduler else 0.5)


def called_steps(total: int, options: ForecastOptions) -> list[bool]:
    """For each of `total` steps whether the model is called: at the first ones, then every `1 + 2 * strength` steps,
    and `2 * strength` more after each such call. At 0.5 that is 12 of 20."""
    growth, called, since = 2.0 * options.strength, [], 0
    window, warm_up = 1.0 + growth, options.warm_up(total)
    for step in range(total):
        since += 1
        call = step < warm_up or since >= int(window)
        if call and step >= warm_up:
            window += growth
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
    _agreed: Tensor | None = None  # [B], of the changes that would have been forecast, what came true: sum of products
    _expected: Tensor | None = None  # [B], their squares

    def __post_init__(self) -> None:
        self._called = called_steps(self.total, self.options)

    def denoised(self, step: int, x: Tensor, sigma: Tensor) -> Tensor | None:
        """The forecast of what the model makes of `x` [B, C, ...] at `sigma` [B], as denoised; None: call it."""
        if step >= self.total or self._called[step] or len(self._outputs) < MIN_WARM_UP:
            return None
        if step == self.total - 1 and float(sigma.max()) > MAX_LAST_SIGMA:
            return None
        if self._outputs[0].shape != x.shape:
            self.reset()
            return None
        output = self._outputs[-1] + self._share(x) * self._change(sigma)
        self.forecast += 1
        return x - per_image(sigma, x) * output.to(x.dtype)

    def take(self, x: Tensor, sigma: Tensor, denoised: Tensor) -> None:
        """A call was made, and this came of it."""
        output = ((x - denoised) / per_image(sigma, x)).float()
        if len(self._outputs) >= MIN_WARM_UP - 1 and self._outputs[-1].shape == output.shape:
            change = self._change(sigma).flatten(1)
            agreed = (change * (output - self._outputs[-1]).flatten(1)).sum(1)
            expected = change.square().sum(1)
            self._agreed = agreed if self._agreed is None else self._agreed + agreed
            self._expected = expected if self._expected is None else self._expected + expected
        self._times.append(self._time(sigma))
        self._outputs.append(output)
        del self._times[:-MAX_HISTORY], self._outputs[:-MAX_HISTORY]

    def _change(self, sigma: Tensor) -> Tensor:
        """Forecast by how much the output at `sigma` is forecast to differ from the last one."""
        weights = forecast_weights(self._times, self._time(sigma), self.options)
        change = -self._outputs[-1]
        for weight, known in zip(weights, self._outputs, strict=True):
            change.add_(known, alpha=weight)
        return change

    def _share(self, x: Tensor) -> Tensor | float:
        """How much of such a change is to be believed, for each image [B, 1, ...], 0 to 1."""
        if self._agreed is None or self._expected is None:
            return 1.0
        share = (self._agreed / self._expected.clamp_min(TINY)).clamp(0.0, 1.0)
        return share.reshape(-1, *(1,) * (x.ndim - 1))

    def reset(self) -> None:
        """Begin again: the model predicts another thing from now on (another prompt, another model)."""
        self._times.clear()
        self._outputs.clear()
        self._agreed = self._expected = None

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


def per_image(sigma: Tensor, x: Tensor) -> Tensor:
    """Return sigma [B] in a shape that multiplies `x` [B, C, ...]."""
    return sigma.to(x.device, torch.float32).clamp_min(1e-6).reshape(-1, *(1,) * (x.ndim - 1))
