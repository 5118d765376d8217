"""Schedule types: each turns a step count into descending sigmas, and `build_sigmas` adds the options around them.

All work on the CPU in fp32 unless they say otherwise, so that a schedule is the same on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from modules.errors import InvalidValueError
from modules.sampling.catalog import SAMPLERS, SCHEDULES, Family, SamplerSpec, ScheduleSpec, effective_schedule
from modules.sampling.discrete import LcmSchedule, SigmaMap
from modules.sampling.flow import FlowSchedule, NoiseLevels, sampler_on, trained_timesteps
from modules.sampling.timesteps import timestep_sigmas

OLD_KARRAS_RANGE = (0.1, 10.0)

# "Align Your Steps" (Sabour et al. 2024, arXiv:2404.14507): optimal 10-step schedules, published with the paper.
ALIGN_YOUR_STEPS_512 = (14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029)
ALIGN_YOUR_STEPS_1024 = (14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029)


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """Overrides of a schedule; 0 means "leave it" for sigma_min, sigma_max and rho.

    `discard_penultimate` drops the next-to-last sigma for every sampler. `old_karras_sigmas` replaces the model's
    range by 0.1 to 10. `align_your_steps` are the sigmas published for the model, from the largest, without the 0.
    """

    sigma_min: float = 0.0
    sigma_max: float = 0.0
    rho: float = 0.0
    beta_alpha: float = 0.6
    beta_beta: float = 0.6
    discard_penultimate: bool = False
    old_karras_sigmas: bool = False
    align_your_steps: tuple[float, ...] = ALIGN_YOUR_STEPS_512

    def __post_init__(self) -> None:
        if self.sigma_min < 0 or self.sigma_max < 0:
            raise InvalidValueError(
                f"The schedule's sigma range is {self.sigma_min} to {self.sigma_max}; sigmas cannot be negative. "
                "Use 0 to keep the model's own."
            )
        if 0 < self.sigma_max <= self.sigma_min:
            raise InvalidValueError(
                f"The schedule's smallest sigma {self.sigma_min} is not below its largest {self.sigma_max}. "
                "Lower sigma min, or raise sigma max."
            )
        if self.beta_alpha <= 0 or self.beta_beta <= 0:
            raise InvalidValueError(
                f"Beta schedule: alpha is {self.beta_alpha} and beta {self.beta_beta}; both must be above 0."
            )


@dataclass(frozen=True, kw_only=True)
class SigmaRequest:
    """Arguments of a schedule function: the step count, the range, the model and the shape parameters."""

    steps: int
    sigma_min: float
    sigma_max: float
    model: SigmaMap
    rho: float
    options: ScheduleOptions


def append_zero(sigmas: Tensor) -> Tensor:
    """Add the final 0, the clean image."""
    return torch.cat([sigmas, sigmas.new_zeros(1)])


def uniform(request: SigmaRequest) -> Tensor:
    """Evenly spaced in the model's timesteps over its whole range."""
    return append_zero(request.model.uniform_sigmas(request.steps))


def karras(request: SigmaRequest) -> Tensor:
    """Evenly spaced in `sigma^(1/rho)`: Karras et al. 2022, arXiv:2206.00364, equation 5."""
    ramp = torch.linspace(0, 1, request.steps)
    smallest = torch.tensor(request.sigma_min) ** (1 / request.rho)
    largest = torch.tensor(request.sigma_max) ** (1 / request.rho)
    return append_zero((largest + ramp * (smallest - largest)) ** request.rho)


def exponential(request: SigmaRequest) -> Tensor:
    """Evenly spaced in log sigma."""
    return append_zero(torch.linspace(math.log(request.sigma_max), math.log(request.sigma_min), request.steps).exp())


def polyexponential(request: SigmaRequest) -> Tensor:
    """A power `rho` of a straight line in log sigma; with rho 1 the exponential schedule."""
    ramp = torch.linspace(1, 0, request.steps) ** request.rho
    log_min, log_max = math.log(request.sigma_min), math.log(request.sigma_max)
    return append_zero((ramp * (log_max - log_min) + log_min).exp())


def sgm_uniform(request: SigmaRequest) -> Tensor:
    """Evenly spaced in timesteps, the last one left out: the "trailing" spacing of Stability's SGM code."""
    start, end = _timestep_range(request)
    times = torch.linspace(start, end, request.steps + 1)[:-1]
    return append_zero(request.model.t_to_sigma(times))


def normal(request: SigmaRequest) -> Tensor:
    """Evenly spaced in timesteps between the sigma limits, both included."""
    start, end = _timestep_range(request)
    return append_zero(request.model.t_to_sigma(torch.linspace(start, end, request.steps)))


def kl_optimal(request: SigmaRequest) -> Tensor:
    """Evenly spaced in arctan sigma ("Align Your Steps", theorem 3.1). It ends at sigma_min: no final 0."""
    index = torch.arange(request.steps + 1) / request.steps
    low, high = (torch.arctan(torch.tensor(s)) for s in (request.sigma_min, request.sigma_max))
    return torch.tan(index * low + (1 - index) * high)


def align_your_steps(request: SigmaRequest) -> Tensor:
    """The published table for the model family, interpolated in log sigma for other step counts."""
    table = np.array(request.options.align_your_steps)
    if request.steps != len(table):
        at = np.linspace(0, 1, request.steps)
        table = np.exp(np.interp(at, np.linspace(0, 1, len(table)), np.log(table[::-1])))[::-1].copy()
    return append_zero(torch.from_numpy(table).float())


def simple(request: SigmaRequest) -> Tensor:
    """Every (T / steps)-th of the model's sigmas, counted from the largest."""
    sigmas = request.model.sigmas
    stride = len(sigmas) / request.steps
    return append_zero(sigmas[[len(sigmas) - 1 - int(i * stride) for i in range(request.steps)]])


def ddim(request: SigmaRequest) -> Tensor:
    """The model's sigmas at the timesteps 1, 1 + T // steps, ... in descending order.

    Where T is no multiple of the step count this gives more steps than asked for (7 asked of 1000: 8).
    """
    sigmas = request.model.sigmas
    stride = max(len(sigmas) // request.steps, 1)
    return append_zero(sigmas[1::stride].flip(0))


def beta(request: SigmaRequest) -> Tensor:
    """Quantiles of a beta distribution between the sigma limits: Lee et al. 2024, arXiv:2407.12173."""
    from scipy.special import betaincinv  # slow import, for this schedule alone

    quantiles = 1 - np.linspace(0, 1, request.steps)
    at = betaincinv(request.options.beta_alpha, request.options.beta_beta, quantiles)
    sigmas = request.sigma_min + at * (request.sigma_max - request.sigma_min)
    return append_zero(torch.from_numpy(sigmas).float())


def _timestep_range(request: SigmaRequest) -> tuple[float, float]:
    """Timesteps of the largest and the smallest sigma."""
    times = request.model.sigma_to_t(torch.tensor([request.sigma_max, request.sigma_min]))
    return times[0].item(), times[1].item()


def build_sigmas(
    sampler: SamplerSpec | str,
    scheduler: ScheduleSpec | str,
    steps: int,
    model: NoiseLevels,
    options: ScheduleOptions | None = None,
    uni_pc_skip_type: str = "time_uniform",
) -> Tensor:
    """The sigmas [n + 1] (fp32, CPU, descending) that a sampler gets for `steps` steps.

    n is `steps` and the last sigma 0, but for these: the DDIM schedule may have more steps; KL Optimal ends at
    sigma_min; DDIM, DDIM CFG++ and PLMS have the sigmas of their n + 1 timesteps (ending at timestep 1, so n is
    steps - 1 where 1000 is a multiple of `steps`); UniPC ends at the sigma of timestep 0. On a flow all follow the
    schedule type.
    """
    spec = sampler_on(SAMPLERS.get(sampler) if isinstance(sampler, str) else sampler, model)
    schedule = SCHEDULES.get(scheduler) if isinstance(scheduler, str) else scheduler
    options = options or ScheduleOptions()
    check_steps(steps)
    discards = spec.discard_next_to_last_sigma or options.discard_penultimate
    if spec.family is Family.TIMESTEP:
        return timestep_sigmas(spec, steps + discards, trained_timesteps(spec, model), uni_pc_skip_type)
    levels: SigmaMap = LcmSchedule(trained_timesteps(spec, model)) if spec.family is Family.LCM else model
    schedule = effective_schedule(spec, schedule)
    request = _request(steps + discards, levels, schedule, options)
    sigmas: Tensor = uniform(request) if schedule.target is None else schedule.function(request)
    sigmas = torch.cat([sigmas[:-2], sigmas[-1:]]) if discards else sigmas
    return model.stretched(sigmas) if isinstance(model, FlowSchedule) else sigmas


def check_steps(steps: int) -> None:
    """Raise `InvalidValueError` for a step count that no schedule can have."""
    if steps < 1:
        raise InvalidValueError(f"The number of sampling steps is {steps}; it must be at least 1.")


def _request(steps: int, levels: SigmaMap, schedule: ScheduleSpec, options: ScheduleOptions) -> SigmaRequest:
    """Gather what the schedule function gets: the model's range or what the options put in its place."""
    smallest, largest = levels.sigmas[0].item(), levels.sigmas[-1].item()
    if options.old_karras_sigmas:
        smallest, largest = OLD_KARRAS_RANGE
    smallest, largest = options.sigma_min or smallest, options.sigma_max or largest
    if smallest >= largest:
        raise InvalidValueError(
            f"The schedule would run from sigma {largest:g} to {smallest:g}, which is not downwards. "
            "Lower sigma min, raise sigma max, or set both to 0 for the model's own range."
        )
    takes_rho = schedule.default_rho != -1
    rho = options.rho if takes_rho and options.rho else schedule.default_rho
    return SigmaRequest(steps=steps, sigma_min=smallest, sigma_max=largest, model=levels, rho=rho, options=options)
