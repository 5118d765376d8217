"""From what was asked to what a sampler runs: `txt2img_run`, `img2img_run`, and the noise and latents it starts with.

The caller makes a plan, lets it scale the first noise (`start` or `start_from`), makes the step noise
(`step_noise`) and a `Denoise` (`denoisers.denoise_for`, with guidance around it), and calls `run`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from modules.sampling.brownian import BrownianNoise
from modules.sampling.catalog import Family, OnFlow, SamplerSpec, ScheduleSpec
from modules.sampling.discrete import DiscreteSchedule, LcmSchedule
from modules.sampling.flow import (
    FlowSchedule,
    NoiseLevels,
    adds_noise,
    check_flow_range,
    check_flow_sampler,
    exploding_options,
    in_exploding_scaling,
    sampler_on,
    trained_timesteps,
)
from modules.sampling.noise import GaussianNoise, ImageNoise
from modules.sampling.schedules import ScheduleOptions, build_sigmas, check_steps
from modules.sampling.timesteps import noising_timestep, tail_sigmas
from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepNoise


@dataclass(frozen=True, eq=False)
class SamplingRun:
    """One sampling run, ready to run.

    `sigmas` are its sigmas; `all_sigmas` the whole schedule, from which img2img may have taken the tail (a
    Brownian tree spans it). Latents that go in and come out are in the model's latent units: `start` and
    `start_from` return what `run` wants: `x0 + sigma * noise`, or for a flow model `(1 - sigma) * x0 + sigma * noise`.

    `explodes`: the model is a flow model, and the run is in the former scaling all the same (see `flow`).
    """

    spec: SamplerSpec
    sigmas: Tensor
    all_sigmas: Tensor
    options: SamplerOptions
    noise_scale: float
    latent_scale: float = 1.0
    explodes: bool = False

    @property
    def own_sigmas(self) -> list[float]:
        """Its sigmas in the model's scaling."""
        own: list[float] = (self.sigmas / (1 + self.sigmas) if self.explodes else self.sigmas).tolist()
        return own

    def start(self, noise: Tensor) -> Tensor:
        """The x that txt2img starts from, out of unit-variance noise [B, C, H, W]."""
        return noise * self.noise_scale

    def start_from(self, latent: Tensor, noise: Tensor) -> Tensor:
        """The x that img2img starts from: a clean latent and unit-variance noise, both [B, C, H, W]."""
        return latent * self.latent_scale + noise * self.noise_scale

    def step_noise(self, image_noise: ImageNoise, per_image: bool = True) -> StepNoise:
        """The noise of the steps: the next draws of the batch's generators, or Brownian trees with its seeds.

        `per_image` False makes one tree for the whole batch, which spans the sigmas of the run alone.
        """
        span = self.all_sigmas if per_image else self.sigmas
        if not self.spec.brownian_noise or not bool((span > 0).any()):
            return GaussianNoise(image_noise)
        request = image_noise.request
        return BrownianNoise(request.shape, request.seeds, span, request.source, image_noise.device, per_image)

    def run(self, denoise: Denoise, x: Tensor, noise: StepNoise, on_step: OnStep) -> Tensor:
        """Run the sampler: x [B, C, H, W] from `start` or `start_from`, result the clean latents."""
        denoise = in_exploding_scaling(denoise) if self.explodes else denoise
        return self.spec.function(denoise, x, self.sigmas, self.options, noise, on_step)


def txt2img_run(
    spec: SamplerSpec,
    schedule: ScheduleSpec,
    steps: int,
    model: NoiseLevels,
    schedule_options: ScheduleOptions | None = None,
    options: SamplerOptions | None = None,
    sgm_noise_multiplier: bool = False,
) -> SamplingRun:
    """A sampling run from pure noise. `sgm_noise_multiplier` scales it by sqrt(1 + sigma^2) as SGM does, not by sigma.

    The timestep family always has the former: its first x is unit noise in variance preserving scaling.
    """
    options, spec = options or SamplerOptions(), sampler_on(spec, model)
    sigmas = build_sigmas(spec, schedule, steps, model, schedule_options, options.uni_pc_skip_type)
    if spec.uses_sigma_range and options.sigma_range is None:
        levels = LcmSchedule(trained_timesteps(spec, model)).sigmas if spec.family is Family.LCM else model.sigmas
        options = replace(options, sigma_range=(levels[0].item(), levels[-1].item()))
    if isinstance(model, FlowSchedule):
        return _plan_flow(spec, sigmas, sigmas, model, options)
    first = sigmas[0].item()
    preserving = sgm_noise_multiplier or spec.family is Family.TIMESTEP
    scale = math.sqrt(1 + first**2) if preserving else first
    return SamplingRun(spec, sigmas, sigmas, options, scale)


def img2img_run(
    spec: SamplerSpec,
    schedule: ScheduleSpec,
    steps: int,
    t_enc: int,
    model: NoiseLevels,
    schedule_options: ScheduleOptions | None = None,
    options: SamplerOptions | None = None,
) -> SamplingRun:
    """A sampling run over the tail of a schedule, from a noised image; `steps` and `t_enc` come from `img2img_steps`.

    The sigma family takes t_enc + 1 steps. The timestep family noises to the timestep above its first one and takes
    t_enc - 1 steps (UniPC: t_enc).
    """
    options, spec = options or SamplerOptions(), sampler_on(spec, model)
    schedule_options = schedule_options or ScheduleOptions()
    if spec.family is Family.TIMESTEP:
        return _plan_timestep_tail(spec, steps, t_enc, trained_timesteps(spec, model), schedule_options, options)
    all_sigmas = build_sigmas(spec, schedule, steps, model, schedule_options)
    sigmas = all_sigmas[max(steps - t_enc - 1, 0) :]
    if isinstance(model, FlowSchedule):
        return _plan_flow(spec, sigmas, all_sigmas, model, options)
    return SamplingRun(spec, sigmas, all_sigmas, options, sigmas[0].item())


def _plan_flow(
    spec: SamplerSpec, sigmas: Tensor, all_sigmas: Tensor, model: FlowSchedule, options: SamplerOptions
) -> SamplingRun:
    """A sampling run with a flow model, in its own scaling or, where the sampler needs it, in the exploding one.

    Pure noise has unit variance in the model's own scaling, so that the SGM noise multiplier changes nothing.
    """
    check_flow_sampler(spec, options)
    check_flow_range(all_sigmas)
    if spec.on_flow is OnFlow.EXPLODING or adds_noise(spec, options):
        sigmas, all_sigmas = model.exploding(sigmas), model.exploding(all_sigmas)
        options = exploding_options(options, model)
        return SamplingRun(spec, sigmas, all_sigmas, options, sigmas[0].item(), explodes=True)
    first = sigmas[0].item()
    return SamplingRun(spec, sigmas, all_sigmas, options, first, latent_scale=1 - first)


def _plan_timestep_tail(
    spec: SamplerSpec,
    steps: int,
    t_enc: int,
    model: DiscreteSchedule,
    schedule_options: ScheduleOptions,
    options: SamplerOptions,
) -> SamplingRun:
    """img2img for the timestep family: the noise level follows one timestep, the first step assumes another."""
    check_steps(steps)
    steps += schedule_options.discard_penultimate
    noised_to = noising_timestep(steps, t_enc, len(model.sigmas))
    sigma = model.sigmas[noised_to].item()
    sigmas = tail_sigmas(spec, steps, t_enc, model, options.uni_pc_skip_type)
    if len(sigmas) == 0:  # not one step: the noised image is the result, variance preserving
        return SamplingRun(spec, sigmas, sigmas, options, sigma / math.sqrt(1 + sigma**2), 1 / math.sqrt(1 + sigma**2))
    scale = math.sqrt((1 + sigmas[0].item() ** 2) / (1 + sigma**2))
    return SamplingRun(spec, sigmas, sigmas, options, sigma * scale, scale)


def img2img_steps(steps: int, denoising_strength: float, fix_steps: bool) -> tuple[int, int]:
    """(steps of the whole schedule, t_enc: the index its tail starts from) for a denoising strength of 0 to 1.

    `fix_steps` stretches the schedule so that about `steps` steps really run; hires fix always does. A strength of 0
    then gives 0 steps, which means that there is nothing to sample.
    """
    strength = min(denoising_strength, 0.999)
    if not fix_steps:
        return steps, int(strength * steps)
    return (int(steps / strength) if denoising_strength > 0 else 0), steps - 1
