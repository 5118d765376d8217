"""Choices: the 20 samplers and 12 schedule types with their names, aliases and facts, as data.

This file is free of torch so that a page or an API reply can list the names without loading it. The functions
behind an entry are imported when they are first asked for (`SamplerSpec.function`, `ScheduleSpec.function`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from modules.system.registry import Registry

if TYPE_CHECKING:
    from modules.sampling.types import Sampler


class Family(Enum):
    """Scale that a sampler steps over, which decides the schedule it gets and how sigma becomes a timestep of the
    model.

    SIGMA:    k-diffusion's way: sigmas from a schedule type, fractional timesteps.
    TIMESTEP: the DDPM way: integer timesteps (UniPC: fractional ones), variance preserving inside; ignores the
              schedule type.
    LCM:      as SIGMA, on the 50 timesteps that latent consistency models are trained on.
    """

    SIGMA = "sigma"
    TIMESTEP = "timestep"
    LCM = "lcm"


class OnFlow(Enum):
    """Behavior of a sampler with a model that predicts a flow, where it follows the schedule type whatever its family.

    FITTING:   it steps over the flow's own sigmas, or in variance-exploding scaling where it adds noise on its way.
    EXPLODING: in that scaling always: it adds noise, or counts in the logarithm of the signal-to-noise ratio.
    REFUSED:   nothing, its steps are over timesteps.
    """

    FITTING = "fitting"
    EXPLODING = "exploding"
    REFUSED = "refused"


class EtaSource(Enum):
    """Which setting gives eta when a request leaves it open; NONE: the sampler has no eta."""

    NONE = ""
    ANCESTRAL = "eta_ancestral"
    DDIM = "eta_ddim"


DEFAULT_ETA = {EtaSource.NONE: 0.0, EtaSource.ANCESTRAL: 1.0, EtaSource.DDIM: 0.0}


def _load(target: str) -> Any:
    """Import the attribute that `module:name` points at; `module` lies in this package."""
    module, name = target.split(":")
    return getattr(import_module(f"modules.sampling.{module}"), name)


@dataclass(frozen=True, kw_only=True)
class SamplerSpec:
    """One sampler: its names, where its function lies, and what the caller has to know about it.

    `default_scheduler` is the schedule that Automatic means for it; None: the model's own, uniform in timesteps.
    `multistep`: a step's direction is extrapolated from the outputs of the steps before.
    `second_order`: the model is called about twice a step, which counts in prompt schedules and progress.
    `uses_ensd`: the eta noise seed delta is part of the image's parameters.
    `brownian_noise`: its noise comes from a Brownian tree. `takes`: the sigma churn options it listens to.
    `renoises`: it adds noise whatever eta and the options say.
    `uses_sigma_range`: it picks its own steps between the model's largest and smallest sigma.
    `cfg_scale_multiplier`: the guidance scale is multiplied with it; `needs_uncond`: the sampler wants the
    unconditional prediction too (see `types.GuidedDenoise`).
    """

    name: str
    aliases: tuple[str, ...]
    target: str
    default_scheduler: str | None = None
    family: Family = Family.SIGMA
    on_flow: OnFlow = OnFlow.FITTING
    eta: EtaSource = EtaSource.NONE
    discard_next_to_last_sigma: bool = False
    uses_ensd: bool = False
    multistep: bool = False
    second_order: bool = False
    brownian_noise: bool = False
    renoises: bool = False
    uses_sigma_range: bool = False
    needs_uncond: bool = False
    cfg_scale_multiplier: float = 1.0
    solver_type: str | None = None
    takes: frozenset[str] = field(default_factory=frozenset)

    @property
    def function(self) -> Sampler:
        """The sampler itself: `(denoise, x, sigmas, options, noise, on_step) -> latents`."""
        function: Sampler = _load(self.target)
        return function

    @property
    def ignores_scheduler(self) -> bool:
        """True for the timestep family, whose steps follow from the step count alone."""
        return self.family is Family.TIMESTEP

    @property
    def default_eta(self) -> float:
        """Eta where neither the request nor a setting says otherwise."""
        return DEFAULT_ETA[self.eta]

    @property
    def options(self) -> dict[str, str]:
        """The options as `GET /sdapi/v1/samplers` shows them, in its order."""
        shown: dict[str, str] = {}
        if self.default_scheduler is not None:
            shown["scheduler"] = self.default_scheduler
        for flag in ("discard_next_to_last_sigma", "uses_ensd", "second_order", "brownian_noise"):
            if getattr(self, flag):
                shown[flag] = "True"
        if self.solver_type is not None:
            shown["solver_type"] = self.solver_type
        return shown


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """One schedule type. `default_rho` is -1 where rho means nothing; `need_inner_model`: it depends on the model's
    own sigmas. `target` is None for Automatic, which leaves the choice to the sampler."""

    name: str
    label: str
    target: str | None
    aliases: tuple[str, ...] = ()
    default_rho: float = -1.0
    need_inner_model: bool = False

    @property
    def function(self) -> Callable[..., Any]:
        """The schedule's function: from a `schedules.SigmaRequest` to sigmas."""
        if self.target is None:
            raise ValueError(f"schedule {self.label!r} has no function of its own: the sampler decides")
        function: Callable[..., Any] = _load(self.target)
        return function


SAMPLERS: Registry[SamplerSpec] = Registry("sampler")
SCHEDULES: Registry[ScheduleSpec] = Registry("scheduler")

_CHURN = frozenset({"s_churn", "s_tmin", "s_tmax", "s_noise"})
_S_NOISE = frozenset({"s_noise"})
_ANCESTRAL = EtaSource.ANCESTRAL

# The order is the order of the drop-down.
for _spec in (
    SamplerSpec(
        name="DPM++ 2M",
        aliases=("k_dpmpp_2m",),
        target="dpmpp:sample_dpmpp_2m",
        default_scheduler="karras",
        multistep=True,
    ),
    SamplerSpec(
        name="DPM++ SDE",
        aliases=("k_dpmpp_sde",),
        target="dpmpp_sde:sample_dpmpp_sde",
        default_scheduler="karras",
        eta=_ANCESTRAL,
        second_order=True,
        brownian_noise=True,
        takes=_S_NOISE,
    ),
    SamplerSpec(
        name="DPM++ 2M SDE",
        aliases=("k_dpmpp_2m_sde",),
        target="dpmpp_sde:sample_dpmpp_2m_sde",
        default_scheduler="exponential",
        eta=_ANCESTRAL,
        brownian_noise=True,
        takes=_S_NOISE,
    ),
    SamplerSpec(
        name="DPM++ 2M SDE Heun",
        aliases=("k_dpmpp_2m_sde_heun",),
        target="dpmpp_sde:sample_dpmpp_2m_sde_heun",
        default_scheduler="exponential",
        eta=_ANCESTRAL,
        brownian_noise=True,
        solver_type="heun",
        takes=_S_NOISE,
    ),
    SamplerSpec(
        name="DPM++ 2S a",
        aliases=("k_dpmpp_2s_a",),
        target="dpmpp:sample_dpmpp_2s_ancestral",
        default_scheduler="karras",
        eta=_ANCESTRAL,
        uses_ensd=True,
        second_order=True,
        takes=_S_NOISE,
    ),
    SamplerSpec(
        name="DPM++ 3M SDE",
        aliases=("k_dpmpp_3m_sde",),
        target="dpmpp_sde:sample_dpmpp_3m_sde",
        default_scheduler="exponential",
        eta=_ANCESTRAL,
        discard_next_to_last_sigma=True,
        brownian_noise=True,
        takes=_S_NOISE,
    ),
    SamplerSpec(
        name="Euler a",
        aliases=("k_euler_a", "k_euler_ancestral"),
        target="euler:sample_euler_ancestral",
        eta=_ANCESTRAL,
        uses_ensd=True,
    ),
    SamplerSpec(name="Euler", aliases=("k_euler",), target="euler:sample_euler", takes=_CHURN),
    SamplerSpec(name="LMS", aliases=("k_lms",), target="lms:sample_lms", multistep=True),
    SamplerSpec(name="Heun", aliases=("k_heun",), target="heun_dpm2:sample_heun", second_order=True, takes=_CHURN),
    SamplerSpec(
        name="DPM2",
        aliases=("k_dpm_2",),
        target="heun_dpm2:sample_dpm_2",
        default_scheduler="karras",
        discard_next_to_last_sigma=True,
        second_order=True,
        takes=_CHURN,
    ),
    SamplerSpec(
        name="DPM2 a",
        aliases=("k_dpm_2_a",),
        target="heun_dpm2:sample_dpm_2_ancestral",
        default_scheduler="karras",
        eta=_ANCESTRAL,
        discard_next_to_last_sigma=True,
        uses_ensd=True,
        second_order=True,
        takes=_S_NOISE,
    ),
    SamplerSpec(
        name="DPM fast",
        aliases=("k_dpm_fast",),
        target="dpm_solver:sample_dpm_fast",
        eta=_ANCESTRAL,
        uses_ensd=True,
        uses_sigma_range=True,
        takes=_S_NOISE,
    ),
    SamplerSpec(
        name="DPM adaptive",
        aliases=("k_dpm_ad",),
        target="dpm_solver:sample_dpm_adaptive",
        eta=_ANCESTRAL,
        uses_ensd=True,
        uses_sigma_range=True,
    ),
    SamplerSpec(
        name="Restart",
        aliases=("restart",),
        target="restart:sample_restart",
        default_scheduler="karras",
        second_order=True,
        renoises=True,
    ),
    SamplerSpec(name="DDIM", aliases=("ddim",), target="ddim:sample_ddim", family=Family.TIMESTEP, eta=EtaSource.DDIM),
    SamplerSpec(
        name="DDIM CFG++",
        aliases=("ddim_cfgpp",),
        target="ddim:sample_ddim_cfgpp",
        family=Family.TIMESTEP,
        eta=EtaSource.DDIM,
        needs_uncond=True,
        cfg_scale_multiplier=1 / 12.5,
        on_flow=OnFlow.REFUSED,
    ),
    SamplerSpec(
        name="PLMS",
        aliases=("plms",),
        target="plms:sample_plms",
        family=Family.TIMESTEP,
        on_flow=OnFlow.REFUSED,
        multistep=True,
    ),
    SamplerSpec(
        name="UniPC",
        aliases=("unipc",),
        target="unipc:sample_unipc",
        family=Family.TIMESTEP,
        on_flow=OnFlow.EXPLODING,
        multistep=True,
    ),
    SamplerSpec(
        name="LCM",
        aliases=("k_lcm",),
        target="lcm:sample_lcm",
        family=Family.LCM,
        on_flow=OnFlow.EXPLODING,
    ),
):
    SAMPLERS.add(_spec.name, _spec, _spec.aliases)

for _schedule in (
    ScheduleSpec(name="automatic", label="Automatic", target=None),
    ScheduleSpec(name="uniform", label="Uniform", target="schedules:uniform", need_inner_model=True),
    ScheduleSpec(name="karras", label="Karras", target="schedules:karras", default_rho=7.0),
    ScheduleSpec(name="exponential", label="Exponential", target="schedules:exponential"),
    ScheduleSpec(name="polyexponential", label="Polyexponential", target="schedules:polyexponential", default_rho=1.0),
    ScheduleSpec(
        name="sgm_uniform",
        label="SGM Uniform",
        target="schedules:sgm_uniform",
        aliases=("SGMUniform",),
        need_inner_model=True,
    ),
    ScheduleSpec(name="kl_optimal", label="KL Optimal", target="schedules:kl_optimal"),
    ScheduleSpec(name="align_your_steps", label="Align Your Steps", target="schedules:align_your_steps"),
    ScheduleSpec(name="simple", label="Simple", target="schedules:simple", need_inner_model=True),
    ScheduleSpec(name="normal", label="Normal", target="schedules:normal", need_inner_model=True),
    ScheduleSpec(name="ddim", label="DDIM", target="schedules:ddim", need_inner_model=True),
    ScheduleSpec(name="beta", label="Beta", target="schedules:beta", need_inner_model=True),
):
    SCHEDULES.add(_schedule.name, _schedule, (_schedule.label, *_schedule.aliases))


def effective_schedule(sampler: SamplerSpec, schedule: ScheduleSpec) -> ScheduleSpec:
    """The schedule that is really used: what Automatic means for this sampler, or `schedule` itself.

    Its label is the "Schedule type" of an image's parameters. Automatic stays for samplers without a default.
    """
    if schedule.target is None and sampler.default_scheduler is not None:
        return SCHEDULES.get(sampler.default_scheduler)
    return schedule
