"""One pass of sampling, the same steps whatever it starts from: latents, sigmas, noise, guidance, sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from modules.models.families.family import GuidanceType
from modules.models.loading.loaded import LoadedModel
from modules.processing.engine.conditioning import EncodedPrompts
from modules.processing.engine.lease import ModelInUse
from modules.processing.pipeline.guidance import Guidance, GuidanceOptions, GuidedDenoiser, RefinerSwitch, conditioned
from modules.processing.pipeline.starts.start import Start
from modules.processing.pipeline.step_recording import BatchRecorder, PassRecording, pass_identity
from modules.processing.pipeline.steps import StepProgress
from modules.processing.request.batch import Batch, PassTexts
from modules.processing.request.hooks import ExtraNoise, Hooks, MaskedStart, PassStart
from modules.processing.request.model_use import ModelUse, PassFacts, SamplerProgress
from modules.processing.request.pass_settings import PassSettings, Used, eta_of, schedule_options
from modules.processing.request.stages import Stage
from modules.prompting.padding import CondPadding
from modules.sampling.catalog import SAMPLERS, SCHEDULES, Family
from modules.sampling.denoisers import Prediction, denoise_for
from modules.sampling.flow import FlowSchedule, NoiseLevels, sampler_on, trained_timesteps
from modules.sampling.forecast import Forecast, ForecastOptions, forecast_problem, usable_strength
from modules.sampling.noise import ImageNoise, NoiseRequest, NoiseSource
from modules.sampling.plan import SamplingRun
from modules.sampling.schedules import build_sigmas
from modules.sampling.step_cache import StepCache
from modules.sampling.types import Denoise, OnStep, StepInfo
from modules.settings.values import Settings

PREDICTIONS = {
    "epsilon": Prediction.EPS,
    "v_prediction": Prediction.V,
    "flow": Prediction.FLOW,
    "edm_v_prediction": Prediction.EDM_V,
    "edm": Prediction.EDM,
}


@dataclass(frozen=True)
class PassTools:
    """The tools of a pass: the model, the receiver of steps, those who take part, and where the model's outputs are
    kept in case the process ends."""

    in_use: ModelInUse
    steps: StepProgress
    hooks: Hooks
    recorder: BatchRecorder


@dataclass(frozen=True)
class PassResult:
    """Clean latents [B,C,h,w], and what guidance made use of."""

    latents: Tensor
    used: Used


def run_pass(
    settings: PassSettings,
    start: Start,
    batch: Batch,
    texts: PassTexts,
    encoded: EncodedPrompts,
    tools: PassTools,
    refiner_switch: RefinerSwitch | None = None,
) -> PassResult:
    """Sample a batch from its start. Raises `Interrupted` and `Skipped`; `tools.steps.unfinished` is what there is
    then."""
    model, hooks, options = tools.in_use.model, tools.hooks, settings.settings
    levels = pass_levels(model, settings)
    settings = replace(settings, sampler=sampler_on(settings.sampler, levels))
    sampling_run = start.sampling_run(settings, levels)
    if start.encodes:
        tools.steps.stage(Stage.ENCODE_IMAGE)
    latents = start.latents(model, *settings.size_px)
    masked = start.masked(latents)
    if masked is not None:
        hooks.masked(masked)
    if sampling_run is None:
        assert latents is not None, "a pass from pure noise has steps"
        return PassResult(latents, Used.NOTHING)
    tools.steps.begin_pass(len(sampling_run.sigmas) - 1, settings.stage)
    height, width = latents.shape[2:] if latents is not None else model.latent_size(settings.size_px)
    begin_noise = partial(_begin_noise, batch, settings, model, (height, width), start.noise_multiplier)
    noise, first = model.recovery.run(Stage.SAMPLE, begin_noise, is_model=False)
    del begin_noise
    progress = SamplerProgress(len(sampling_run.sigmas) - 1)
    with tools.in_use.in_pass(texts, pass_facts(settings, texts, progress.steps), hooks, progress):
        use = tools.in_use.script_use
        image = start.image_conditioning(model, height, width)
        recording = _recording(settings, sampling_run, batch, tools, refiner_switch, use)
        denoiser = recording.around(
            guided_denoiser(settings, model, levels, encoded, image, start.image_cfg_scale, use)
        )
        if refiner_switch is not None:
            refiner_switch = replace(refiner_switch, make=_recorded(recording, refiner_switch.make))
        check, check_nan = recording.counting(tools.steps.check), model.plan.check_nan
        calls = len(sampling_run.sigmas) - 1
        ends = sampling_run.own_sigmas
        guidance = build_guidance(settings, denoiser, check, check_nan, refiner_switch, calls, levels, ends)
        del denoiser, model, use  # a refiner may have to leave memory to itself
        x = first if latents is None else latents
        computing = _Computing(settings, start, tools, levels, sampling_run, image, latents)
        hooks.before_sampling(PassStart(x, first, encoded.prompts, encoded.negatives, settings.is_hires, computing))
        on_step = _telling(tools.steps, recording, progress, hooks)
        with recording, tools.in_use.merging_tokens(settings.token_merging_ratio):
            result = sampling_run.run(
                start.constrain(guidance, latents, hooks, settings.sampler),
                _noised(sampling_run, latents, first, options.img2img.img2img_extra_noise, hooks),
                sampling_run.step_noise(noise, per_image=not options.compatibility.no_dpmpp_sde_batch_determinism),
                on_step if masked is None or hooks.wants_mask_blends else _showing(masked, on_step),
            )
    tools.steps.end_pass()
    return PassResult(start.keep(result, latents, hooks), guidance.used)


@dataclass(frozen=True, eq=False)
class _Computing:
    """Implements `PassComputing`; keeps no model."""

    settings: PassSettings
    start: Start
    tools: PassTools
    levels: NoiseLevels
    sampling_run: SamplingRun
    image: Tensor | None
    latents: Tensor | None

    @property
    def sigmas(self) -> Tensor:
        return self.sampling_run.sigmas

    def schedule(self, steps: int) -> Tensor:
        options = schedule_options(self.settings.settings, self.settings.schedule_table)
        return build_sigmas("Euler", "Automatic", steps, self.levels, options)

    def denoiser(self, prompts: Sequence[str], negatives: Sequence[str], cfg_scale: float, steps: int) -> Denoise:
        model, settings = self.tools.in_use.model, self.settings
        own = replace(settings, sampler=SAMPLERS.get("Euler"), steps=steps, cfg_scale=cfg_scale)
        encode, images = self.tools.in_use.conditioner.encode, self.start.seen(model)
        encoded = encode(prompts, negatives, steps, own.settings, own.size_px, images=images)
        denoiser = guided_denoiser(own, model, self.levels, encoded, self.image, self.start.image_cfg_scale)
        return build_guidance(own, denoiser, self.tools.steps.check, model.plan.check_nan)

    def noise_for(self, x: Tensor) -> Tensor:
        run = self.sampling_run
        kept = 0.0 if self.latents is None else self.latents * run.latent_scale
        return (x - kept) / run.noise_scale


def _recording(
    settings: PassSettings,
    sampling_run: SamplingRun,
    batch: Batch,
    tools: PassTools,
    refiner_switch: RefinerSwitch | None,
    use: ModelUse | None,
) -> PassRecording:
    """Where the model's answers in this pass are kept, with those of an earlier try."""
    recorder, in_use = tools.recorder, tools.in_use
    if use is not None and not use.is_replayable:
        recorder = replace(recorder, run=None)
    calls = (len(sampling_run.sigmas) - 1) * (2 if settings.sampler.second_order else 1)

    def identity() -> bytes:
        models = [in_use.model.info, *([refiner_switch.info] if refiner_switch and refiner_switch.info else [])]
        active = in_use.conditioner.adapters
        facts = [in_use.model.plan.fingerprint, in_use.model.device, active.uses, active.mode]
        return pass_identity(recorder.request, (batch.number, settings.stage.value), models, facts)

    takes_own_steps = settings.sampler.uses_sigma_range  # how many is not known before
    return recorder.begin(batch.number, settings.stage.value, identity, None if takes_own_steps else calls)


def _recorded(recording: PassRecording, make: Callable[[], GuidedDenoiser]) -> Callable[[], GuidedDenoiser]:
    return lambda: recording.around(make())


def _telling(steps: StepProgress, recording: PassRecording, progress: SamplerProgress, hooks: Hooks) -> OnStep:
    """Tell of steps, but not of those that an earlier try has made: they take no time, and nobody wants to see them."""

    def on_step(info: StepInfo) -> None:
        progress.step = info.index
        hooks.step(info)
        if recording.is_replaying:
            steps.unfinished = info.denoised
        else:
            steps.on_step(info)

    return on_step


def _showing(masked: MaskedStart, on_step: OnStep) -> OnStep:
    """Wrap a sampler's reports so that they show what the mask keeps in place: a sampler that sees it at the denoiser's
    input does not predict it."""

    def shown(info: StepInfo) -> None:
        kept = masked.latents * (1.0 - masked.painted)
        on_step(replace(info, denoised=info.denoised * masked.painted + kept))

    return shown


def _noised(
    sampling_run: SamplingRun, latents: Tensor | None, noise: Tensor, extra_noise: float, hooks: Hooks
) -> Tensor:
    """Return what the sampler begins with, [B,C,h,w]."""
    if latents is None:
        return sampling_run.start(noise)
    x = sampling_run.start_from(latents, noise)
    if extra_noise <= 0:
        return x
    extra = ExtraNoise(noise, x, latents)
    hooks.extra_noise(extra)
    return x + extra.noise * extra_noise


def noise_schedule(model: LoadedModel, settings: Settings, latent_size: tuple[int, int] | None = None) -> NoiseLevels:
    """The model's noise levels for latents of this size (height, width); None: of the size it was trained on."""
    side = model.architecture.latent_side
    return model.family.noise.levels(model.architecture.noise_schedule, settings, latent_size or (side, side))


def pass_levels(model: LoadedModel, settings: PassSettings) -> NoiseLevels:
    """The model's noise levels at the size of a pass."""
    return noise_schedule(model, settings.settings, model.latent_size(settings.size_px))


def batch_noise(batch: Batch, settings: PassSettings, model: LoadedModel, shape: tuple[int, int, int]) -> ImageNoise:
    """The noise of a batch; `shape` (channels, height, width) is in latent units."""
    resize = None if batch.seed_resize_px is None else model.latent_size(batch.seed_resize_px)
    request = NoiseRequest(
        shape=shape,
        seeds=batch.seeds,
        subseeds=batch.subseeds,
        subseed_strength=batch.subseed_strength,
        seed_resize_from=resize,
        source=NoiseSource(settings.settings.stable_diffusion.randn_source),
        eta_noise_seed_delta=settings.settings.sampler.eta_noise_seed_delta,
    )
    return ImageNoise(request, model.device)


def _begin_noise(
    batch: Batch, settings: PassSettings, model: LoadedModel, size: tuple[int, int], multiplier: float
) -> tuple[ImageNoise, Tensor]:
    """The noise of a batch, and the first of it [B,C,h,w], `multiplier` times; `size` is (height, width) of latents."""
    noise = batch_noise(batch, settings, model, (model.latent_channels, *size))
    return noise, noise.first() * multiplier


def guided_denoiser(
    plan: PassSettings,
    model: LoadedModel,
    schedule: NoiseLevels,
    prompts: EncodedPrompts,
    image: Tensor | None,
    image_cfg_scale: float | None = None,
    use: ModelUse | None = None,
) -> GuidedDenoiser:
    """The model's denoiser for a pass; `image` is what `Start.image_conditioning` gives. `image_cfg_scale` counts for
    models that edit images."""
    prediction = PREDICTIONS[model.architecture.prediction_type]
    make = partial(denoise_for, plan.sampler, schedule=schedule, prediction=prediction)
    denoise = conditioned(make, model.predict)
    uses_timesteps = sampler_on(plan.sampler, schedule).family is Family.TIMESTEP
    return GuidedDenoiser(
        denoise,
        prompts.prompts,
        prompts.negatives,
        lambda: prompts.negatives.empty,
        image,
        image_cfg_scale if model.edits_images and image_cfg_scale != 1.0 else None,
        trained_timesteps(plan.sampler, schedule).vp_sigma_to_t if uses_timesteps else None,
        model.family.denoiser.guidance(model.unet),
        use or ModelUse.unwatched(),
        partial(model.recovery.run, Stage.SAMPLE, is_model=False),
        model.family.latents.multiple,
        model.family.denoiser.reads_end(model.unet),
    )


def needs_negatives(settings: PassSettings, model: LoadedModel, reads_uncond: bool) -> bool:
    """Return whether a pass is known to use the negative prompts before anything is registered on its model. If not,
    guidance has them encoded as soon as something asks for them."""
    if reads_uncond or model.edits_images:
        return True
    if model.family.denoiser.guidance(model.unet) is GuidanceType.NONE:
        return False
    return settings.sampler.needs_uncond or settings.cfg_scale * settings.sampler.cfg_scale_multiplier != 1.0


def pass_facts(settings: PassSettings, texts: PassTexts, steps: int) -> PassFacts:
    """Return the facts that participants of a pass of so many steps receive."""
    calls = 2 if settings.sampler.second_order else 1
    sizes = settings.size_px, steps
    return PassFacts(texts.prompts, texts.negatives, *sizes, settings.cfg_scale, settings.is_hires, calls)


def build_guidance(
    plan: PassSettings,
    denoiser: GuidedDenoiser,
    check: Callable[[], None],
    check_nan: bool,
    refiner_switch: RefinerSwitch | None = None,
    calls: int = 0,
    levels: NoiseLevels | None = None,
    sigmas: Sequence[float] = (),
) -> Guidance:
    """The denoiser of this pass, with guidance; `calls` of it are expected (0: not known, nothing is forecast) at
    sigmas of `levels`. `sigmas`: those of the schedule, where they are known."""
    settings = plan.settings
    options = GuidanceOptions(
        cfg_scale=plan.cfg_scale * plan.sampler.cfg_scale_multiplier,
        total_model_calls=plan.model_calls,
        distilled_cfg_scale=plan.distilled_cfg_scale,
        needs_uncond=plan.sampler.needs_uncond,
        min_sigma_uncond=settings.optimizations.s_min_uncond,
        all_steps=settings.optimizations.s_min_uncond_all,
        skip_early=settings.sampler.skip_early_cond,
        batch_together=settings.optimizations.batch_cond_uncond,
        padding=_padding(settings),
        check_nan=check_nan,
        sigmas=tuple(sigmas),
    )
    return Guidance(
        denoiser, options, check, refiner_switch, forecast_of(plan, calls, isinstance(levels, FlowSchedule))
    )


def forecast_of(plan: PassSettings, calls: int, is_flow: bool = False) -> Forecast | StepCache | None:
    """Return what stands for some of the calls of a pass, where the settings say so and its sampler allows it. For flow
    models the step cache goes before the forecast."""
    strength, churn = plan.settings.optimizations.forecast_strength, plan.settings.sampler.s_churn
    threshold = plan.settings.optimizations.step_cache_threshold if is_flow else 0.0
    if forecast_problem(plan.sampler, calls, eta_of(plan.sampler, plan.settings), churn) is not None:
        return None
    if threshold > 0:
        return StepCache(calls, threshold)
    if strength <= 0:
        return None
    usable = usable_strength(plan.sampler, SCHEDULES.get(plan.scheduler), strength)
    return Forecast(calls, ForecastOptions(usable))


def _padding(settings: Settings) -> CondPadding:
    if settings.optimizations.pad_cond_uncond_v0:
        return CondPadding.REPEAT
    return CondPadding.EMPTY if settings.optimizations.pad_cond_uncond else CondPadding.NONE
