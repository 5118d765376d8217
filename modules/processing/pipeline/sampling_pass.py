"""One pass of sampling: settings and a request's names become a schedule, noise, guidance and a sampler's walk."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.models.loaded import LoadedModel
from modules.processing.pipeline.conditioning import EncodedPrompts
from modules.processing.pipeline.guidance import Guidance, GuidanceOptions, GuidedDenoiser, RefinerSwitch, conditioned
from modules.processing.pipeline.hooks import GuidanceHooks
from modules.prompting.padding import CondPadding
from modules.sampling.catalog import SCHEDULES, EtaSource, Family, SamplerSpec
from modules.sampling.denoisers import Prediction, denoise_for
from modules.sampling.flow import NoiseLevels, trained_timesteps
from modules.sampling.noise import ImageNoise, NoiseRequest, NoiseSource
from modules.sampling.plan import SamplingRun, img2img_run, img2img_steps, txt2img_run
from modules.sampling.schedules import ALIGN_YOUR_STEPS_512, ScheduleOptions
from modules.sampling.types import SamplerOptions
from modules.settings.values import Settings

PREDICTIONS = {"epsilon": Prediction.EPS, "v_prediction": Prediction.V, "flow": Prediction.FLOW}


@dataclass(frozen=True, kw_only=True)
class PassSettings:
    """What one pass is to do; names are registered ones."""

    sampler: SamplerSpec
    scheduler: str
    steps: int
    cfg_scale: float
    settings: Settings
    schedule_table: tuple[float, ...] = ALIGN_YOUR_STEPS_512

    @property
    def model_calls(self) -> int:
        """Network model calls that prompt schedules are spread over: twice the steps for second-order samplers."""
        return self.steps * 2 if self.sampler.second_order else self.steps


def noise_schedule(model: LoadedModel, settings: Settings, latent_size: tuple[int, int] | None = None) -> NoiseLevels:
    """The model's noise levels for latents of this size (height, width); None: of the size it was trained on."""
    side = model.architecture.latent_side
    return model.family.noise_levels(model.architecture.noise_schedule, settings, latent_size or (side, side))


def schedule_options(settings: Settings, schedule_table: tuple[float, ...]) -> ScheduleOptions:
    """The schedule overrides in the settings."""
    return ScheduleOptions(
        sigma_min=settings.number("sigma_min"),
        sigma_max=settings.number("sigma_max"),
        rho=settings.number("rho"),
        beta_alpha=settings.number("beta_dist_alpha"),
        beta_beta=settings.number("beta_dist_beta"),
        discard_penultimate=settings.flag("always_discard_next_to_last_sigma"),
        old_karras_sigmas=settings.flag("use_old_karras_scheduler_sigmas"),
        align_your_steps=schedule_table,
    )


def sampler_options(spec: SamplerSpec, settings: Settings) -> SamplerOptions:
    """The sampler's knobs in the settings."""
    return SamplerOptions(
        eta=settings.number(spec.eta.value) if spec.eta is not EtaSource.NONE else None,
        s_churn=settings.number("s_churn"),
        s_tmin=settings.number("s_tmin"),
        s_tmax=settings.number("s_tmax"),
        s_noise=settings.number("s_noise"),
        uni_pc_variant=settings.text("uni_pc_variant"),
        uni_pc_skip_type=settings.text("uni_pc_skip_type"),
        uni_pc_order=settings.whole("uni_pc_order"),
        uni_pc_lower_order_final=settings.flag("uni_pc_lower_order_final"),
    )


def image_noise(
    shape: tuple[int, int, int],
    seeds: Sequence[int],
    subseeds: Sequence[int],
    subseed_strength: float,
    seed_resize_from: tuple[int, int] | None,
    spec: SamplerSpec,
    settings: Settings,
    device: torch.device,
) -> ImageNoise:
    """The noise of a batch; `shape` and `seed_resize_from` (height, width) are in latent units."""
    request = NoiseRequest(
        shape=shape,
        seeds=tuple(seeds),
        subseeds=tuple(subseeds),
        subseed_strength=subseed_strength,
        seed_resize_from=seed_resize_from,
        source=NoiseSource(settings.text("randn_source")),
        eta_noise_seed_delta=settings.whole("eta_noise_seed_delta"),
    )
    return ImageNoise(request, device)


def unpainted_image(model: LoadedModel, height: int, width: int) -> Tensor | None:
    """What an inpainting model sees where there is no image, [C,h,w] of latents: all is to be painted (mask 1), over
    grey. instruct-pix2pix gets no image at all (zeros); None for other models."""
    channels = model.image_channels
    if channels == 0:
        return None
    if channels == model.latent_channels:
        return torch.zeros(channels, height, width, device=model.device)
    return F.pad(model.grey_latent(height, width), (0, 0, 0, 0, 1, 0), value=1.0)


def guided_denoiser(
    plan: PassSettings, model: LoadedModel, schedule: NoiseLevels, prompts: EncodedPrompts, latents: tuple[int, int]
) -> GuidedDenoiser:
    """The model's network for a pass over latents of this height and width."""
    prediction = PREDICTIONS[model.architecture.prediction_type]
    make = partial(denoise_for, plan.sampler, schedule=schedule, prediction=prediction)
    denoise = conditioned(make, model.predict)
    uses_timesteps = plan.sampler.family is Family.TIMESTEP
    return GuidedDenoiser(
        denoise,
        prompts.prompts,
        prompts.negatives,
        prompts.empty,
        unpainted_image(model, *latents),
        trained_timesteps(plan.sampler, schedule).vp_sigma_to_t if uses_timesteps else None,
        model.family.guidance(model.unet),
    )


def build_guidance(
    plan: PassSettings,
    denoiser: GuidedDenoiser,
    check: Callable[[], None],
    check_nan: bool,
    hooks: GuidanceHooks | None = None,
    refiner_switch: RefinerSwitch | None = None,
) -> Guidance:
    """The denoiser of this pass, with guidance."""
    settings = plan.settings
    options = GuidanceOptions(
        cfg_scale=plan.cfg_scale * plan.sampler.cfg_scale_multiplier,
        total_model_calls=plan.model_calls,
        min_sigma_uncond=settings.number("s_min_uncond"),
        all_steps=settings.flag("s_min_uncond_all"),
        skip_early=settings.number("skip_early_cond"),
        batch_together=settings.flag("batch_cond_uncond"),
        padding=_padding(settings),
        check_nan=check_nan,
    )
    return Guidance(denoiser, options, check, hooks, refiner_switch)


def first_run(plan: PassSettings, schedule: NoiseLevels) -> SamplingRun:
    """The walk of a first pass, from pure noise."""
    return txt2img_run(
        plan.sampler,
        SCHEDULES.get(plan.scheduler),
        plan.steps,
        schedule,
        schedule_options(plan.settings, plan.schedule_table),
        sampler_options(plan.sampler, plan.settings),
        plan.settings.flag("sgm_noise_multiplier"),
    )


def second_run(plan: PassSettings, schedule: NoiseLevels, denoising_strength: float) -> SamplingRun | None:
    """The walk of hires fix's second pass, from an enlarged image; None where strength 0 leaves nothing to do."""
    steps, t_enc = img2img_steps(plan.steps, denoising_strength, fix_steps=True)
    if steps == 0:
        return None
    return img2img_run(
        plan.sampler,
        SCHEDULES.get(plan.scheduler),
        steps,
        t_enc,
        schedule,
        schedule_options(plan.settings, plan.schedule_table),
        sampler_options(plan.sampler, plan.settings),
    )


def _padding(settings: Settings) -> CondPadding:
    if settings.flag("pad_cond_uncond_v0"):
        return CondPadding.REPEAT
    return CondPadding.EMPTY if settings.flag("pad_cond_uncond") else CondPadding.NONE
