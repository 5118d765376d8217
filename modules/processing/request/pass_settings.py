"""The settings of one pass of sampling, and those of its schedule and sampler."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto

from modules.processing.request.stages import Stage
from modules.sampling.catalog import EtaSource, SamplerSpec
from modules.sampling.schedules import ALIGN_YOUR_STEPS_512, ScheduleOptions
from modules.sampling.types import SamplerOptions
from modules.settings.values import Settings


class Used(Flag):
    """The options that had an effect, for the infotext."""

    NOTHING = 0
    PADDING = auto()
    EARLY_WITHOUT_NEGATIVE = auto()
    LATE_WITHOUT_NEGATIVE = auto()
    MERGED_TOKENS = auto()
    FORECAST = auto()
    STEP_CACHE = auto()
    DISTILLED_GUIDANCE = auto()


@dataclass(frozen=True, kw_only=True)
class PassSettings:
    """The settings of one pass; names are registered ones."""

    sampler: SamplerSpec
    scheduler: str
    steps: int
    cfg_scale: float
    settings: Settings
    distilled_cfg_scale: float = 3.5
    schedule_table: tuple[float, ...] = ALIGN_YOUR_STEPS_512
    stage: Stage = Stage.SAMPLE
    size_px: tuple[int, int] = (512, 512)  # width, height
    token_merging_ratio: float = 0.0

    @property
    def is_hires(self) -> bool:
        """Whether it is the second pass of hires fix."""
        return self.stage is Stage.SAMPLE_HIRES

    @property
    def model_calls(self) -> int:
        """Calls of the denoiser that prompt schedules are spread over: twice the steps for second-order samplers."""
        return self.steps * 2 if self.sampler.second_order else self.steps


def schedule_options(settings: Settings, schedule_table: tuple[float, ...]) -> ScheduleOptions:
    """The schedule overrides in the settings."""
    return ScheduleOptions(
        sigma_min=settings.sampler.sigma_min,
        sigma_max=settings.sampler.sigma_max,
        rho=settings.sampler.rho,
        beta_alpha=settings.sampler.beta_dist_alpha,
        beta_beta=settings.sampler.beta_dist_beta,
        discard_penultimate=settings.sampler.always_discard_next_to_last_sigma,
        old_karras_sigmas=settings.compatibility.use_old_karras_scheduler_sigmas,
        align_your_steps=schedule_table,
    )


def eta_of(spec: SamplerSpec, settings: Settings) -> float:
    """The eta that the settings give this sampler; 0 for one without."""
    match spec.eta:
        case EtaSource.ANCESTRAL:
            return settings.sampler.eta_ancestral
        case EtaSource.DDIM:
            return settings.sampler.eta_ddim
        case EtaSource.NONE:
            return 0.0


def sampler_options(spec: SamplerSpec, settings: Settings) -> SamplerOptions:
    """The sampler's knobs in the settings."""
    return SamplerOptions(
        eta=eta_of(spec, settings) if spec.eta is not EtaSource.NONE else None,
        s_churn=settings.sampler.s_churn,
        s_tmin=settings.sampler.s_tmin,
        s_tmax=settings.sampler.s_tmax,
        s_noise=settings.sampler.s_noise,
        uni_pc_variant=settings.sampler.uni_pc_variant,
        uni_pc_skip_type=settings.sampler.uni_pc_skip_type,
        uni_pc_order=settings.sampler.uni_pc_order,
        uni_pc_lower_order_final=settings.sampler.uni_pc_lower_order_final,
    )
