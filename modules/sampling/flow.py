"""Noise levels of flow matching (Lipman et al. 2023, arXiv:2210.02747; Esser et al. 2024, arXiv:2403.03206).

A flow model sees `x = (1 - sigma) * x0 + sigma * noise` with sigma between 0 and 1, and predicts the velocity
`noise - x0`. So `denoised = x - sigma * v`, and `(x - denoised) / sigma` is the derivative of x by sigma: samplers
that add no noise sample there as they do in variance-exploding scaling, because it is the same equation. Those that do
add some need to know how much of x0 is left; they sample over `x / (1 - sigma) = x0 + s * noise`, with
`s = sigma / (1 - sigma)`, where all of it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from modules.errors import InvalidValueError
from modules.sampling.catalog import EtaSource, Family, OnFlow, SamplerSpec
from modules.sampling.discrete import DiscreteSchedule, interpolate_index, interpolate_value, nearest_index
from modules.sampling.types import Denoise, SamplerOptions

TRAINED_TIMESTEPS = 1000.0  # what the model's time of 1 is called
UNSTEADY = frozenset({"DPM2 a"})  # its midpoint is far from the beginning of a step that ends below

LESS_STEEP = "simple"
"""What Automatic means on a flow for samplers in exploding scaling without a schedule of their own: it does not end in
two steps over most of the logarithm of sigma."""


@dataclass(frozen=True, eq=False)
class FlowSchedule:
    """The sigmas of `timesteps` evenly spaced times u in (0, 1], shifted towards noise:
    `shift * u / (1 + (shift - 1) * u)` (Esser et al. 2024, equation 23). Schedule types count them from 0.

    `terminal`: a schedule whose last step begins above this sigma is stretched until it begins there; 0: none is.
    `table`: the sigmas of evenly spaced times from 1 on, without the final 0, in place of the shift: those between are
    on straight lines.
    """

    shift: float = 3.0
    timesteps: int = 1000
    terminal: float = 0.0
    table: tuple[float, ...] = ()
    sigmas: Tensor = field(init=False)
    log_sigmas: Tensor = field(init=False)

    def __post_init__(self) -> None:
        u = torch.arange(1, self.timesteps + 1, dtype=torch.float64) / self.timesteps
        sigmas = self.shift * u / (1 + (self.shift - 1) * u)
        if self.table:
            known = torch.tensor([0.0, *reversed(self.table)], dtype=torch.float64)
            places = u * len(self.table)
            below = places.ceil().long() - 1
            sigmas = torch.lerp(known[below], known[below + 1], places - below)
        object.__setattr__(self, "sigmas", sigmas.float())
        object.__setattr__(self, "log_sigmas", sigmas.log().float())

    def sigma_to_t(self, sigma: Tensor, quantize: bool | None = None) -> Tensor:
        """Indices of sigmas (any shape): linear in log sigma; with `quantize` the nearest."""
        log_sigmas = self.log_sigmas.to(sigma.device)
        if quantize:
            return nearest_index(sigma.log(), log_sigmas)
        return interpolate_index(sigma.log(), log_sigmas)

    def t_to_sigma(self, t: Tensor) -> Tensor:
        """Sigmas (fp32) of indices, fractions allowed: linear in log sigma."""
        return interpolate_value(t.float(), self.log_sigmas.to(t.device)).exp()

    def uniform_sigmas(self, steps: int) -> Tensor:
        """`steps` sigmas evenly spaced in time from the last to the first, without the final 0."""
        return self.t_to_sigma(torch.linspace(len(self.sigmas) - 1, 0, steps))

    def stretched(self, sigmas: Tensor) -> Tensor:
        """A schedule that ends in 0, with `terminal` as the sigma before, where that is lower."""
        if len(sigmas) < 3 or sigmas[-1] != 0 or not 0 < self.terminal < float(sigmas[-2]) < 1:
            return sigmas
        begins = 1 - (1 - sigmas[:-1]) * ((1 - self.terminal) / (1 - sigmas[-2]))
        return torch.cat([begins, sigmas[-1:]])

    def exploding(self, sigmas: Tensor) -> Tensor:
        """`sigma / (1 - sigma)`. A sigma of 1, which has none, becomes the largest trained level below it."""
        sigmas = sigmas.clamp(max=self.sigmas[-2].item())
        return sigmas / (1 - sigmas)


NoiseLevels = DiscreteSchedule | FlowSchedule
"""What a model was trained on."""


def sampler_on(spec: SamplerSpec, levels: NoiseLevels) -> SamplerSpec:
    """The sampler as it steps over these noise levels. On a flow it follows the schedule type: DDIM is Euler with noise
    where eta asks for it, UniPC (Zhao et al. 2023, arXiv:2302.04867) and LCM have no timesteps of their own. Raises
    `InvalidValueError` for one that needs them."""
    if not isinstance(levels, FlowSchedule) or spec.family is Family.SIGMA:
        return spec
    if spec.on_flow is OnFlow.REFUSED:
        trained_timesteps(spec, levels)
    scheduler = spec.default_scheduler or (LESS_STEEP if spec.on_flow is OnFlow.EXPLODING else None)
    return replace(
        spec, family=Family.SIGMA, default_scheduler=scheduler, renoises=spec.renoises or spec.family is Family.LCM
    )


def trained_timesteps(spec: SamplerSpec, levels: NoiseLevels) -> DiscreteSchedule:
    """The timesteps for a sampler that uses them; raises `InvalidValueError` for a model that has none."""
    if isinstance(levels, FlowSchedule):
        raise InvalidValueError(
            f"The sampler {spec.name} steps over the timesteps of models that predict noise, and this one predicts a "
            "flow. Choose Euler, DPM++ 2M or another sampler that follows the schedule type."
        )
    return levels


def check_flow_sampler(spec: SamplerSpec, options: SamplerOptions) -> None:
    """Raise `InvalidValueError` for a sampler whose steps near pure noise, where `s` is huge, go astray."""
    if spec.name in UNSTEADY and adds_noise(spec, options):
        raise InvalidValueError(
            f"The sampler {spec.name} goes astray near pure noise, where a flow model begins. "
            "Choose Euler a or DPM++ 2S a, or set eta for ancestral samplers to 0."
        )


def check_flow_range(sigmas: Tensor) -> None:
    """Raise `InvalidValueError` for a schedule that begins above the noise level 1."""
    if float(sigmas[0]) > 1:
        raise InvalidValueError(
            f"The schedule begins at noise level {float(sigmas[0]):g}, and those of a flow model "
            "end at 1. Choose another schedule type than Align Your Steps, and set sigma max to 0 and the old Karras "
            "range off in Settings > Sampler parameters."
        )


def adds_noise(spec: SamplerSpec, options: SamplerOptions) -> bool:
    """Whether a sampler draws noise on its way."""
    eta = spec.default_eta if options.eta is None else options.eta
    is_ancestral = spec.eta is not EtaSource.NONE and eta != 0
    return is_ancestral or spec.renoises or ("s_churn" in spec.takes and options.s_churn > 0)


def flow_denoise(denoiser: Denoise, sigma_scale: float = TRAINED_TIMESTEPS) -> Denoise:
    """Denoise from a model that predicts the velocity: `x - sigma * v(x, 1000 sigma)`."""

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        s = sigma.to(x.device, x.dtype, non_blocking=True).reshape(-1, *[1] * (x.ndim - 1))
        t = (sigma * sigma_scale).to(x.device, non_blocking=True)
        return torch.addcmul(x, denoiser(x, t), s, value=-1)

    return denoise


def in_exploding_scaling(denoise: Denoise) -> Denoise:
    """Return the same denoiser for x and sigma in variance-exploding scaling."""

    def denoise_exploding(x: Tensor, sigma: Tensor) -> Tensor:
        share = 1 / (1 + sigma)
        return denoise(x * share.to(x.device, x.dtype).reshape(-1, *[1] * (x.ndim - 1)), sigma * share)

    return denoise_exploding


def exploding_options(options: SamplerOptions, levels: FlowSchedule) -> SamplerOptions:
    """The options of a sampler with its sigma range in variance-exploding scaling."""
    if options.sigma_range is None:
        return options
    low, high = levels.exploding(torch.tensor(options.sigma_range)).tolist()
    return replace(options, sigma_range=(low, high))
