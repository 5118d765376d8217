"""Making a recorded request into a walk, and a denoiser whose answer is known in closed form."""

from typing import Any

import torch
from torch import Tensor

from modules.sampling.catalog import SAMPLERS, SCHEDULES, SamplerSpec, ScheduleSpec
from modules.sampling.names import split_legacy_name
from modules.sampling.noise import ImageNoise, NoiseRequest, NoiseSource
from modules.sampling.plan import SamplingRun, txt2img_run
from modules.sampling.schedules import ScheduleOptions
from modules.sampling.types import SamplerOptions
from tests.sampling.tiny_model import PlainGuidance, TinyModel

DATA_DEVIATION = 0.7


class LinearDenoise:
    """The ideal denoiser of Gaussian data of deviation `DATA_DEVIATION`: `x * s^2 / (s^2 + sigma^2)`."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor, sigma: Tensor, /) -> Tensor:
        self.calls += 1
        variance = DATA_DEVIATION**2
        self._last = x * (variance / (variance + sigma.to(x.dtype) ** 2)).reshape(-1, 1, 1, 1)
        return self._last

    def uncond_denoised(self) -> Tensor:
        return self._last


def resolve_names(sampler: str, scheduler: str | None) -> tuple[SamplerSpec, ScheduleSpec]:
    """The entries that the two names of a recorded request mean; a schedule in the sampler's name wins."""
    name, from_name = split_legacy_name(sampler)
    return SAMPLERS.get(name), SCHEDULES.get(from_name if from_name != "Automatic" else scheduler or "Automatic")


def no_report(_: object) -> None:
    """An `OnStep` for callers that do not care."""


def recorded_plan(payload: dict[str, Any], model: TinyModel) -> SamplingRun:
    """The walk of a recorded txt2img request."""
    settings = payload.get("override_settings", {})
    spec, schedule = resolve_names(payload["sampler_name"], payload["scheduler"])
    overrides = {key: settings[key] for key in ("sigma_min", "sigma_max", "rho") if key in settings}
    knobs = {key: payload[key] for key in ("s_churn", "s_tmin", "s_tmax", "s_noise", "eta") if key in payload}
    knobs |= {key: value for key, value in settings.items() if key.startswith("uni_pc")}
    if "eta_ddim" in settings:
        knobs["eta"] = settings["eta_ddim"]
    return txt2img_run(
        spec, schedule, payload["steps"], model.schedule, ScheduleOptions(**overrides), SamplerOptions(**knobs)
    )


def recorded_noise(payload: dict[str, Any], iteration: int = 0) -> ImageNoise:
    """The noise of one batch of a recorded request."""
    size, strength = payload.get("batch_size", 1), payload.get("subseed_strength", 0.0)
    first = payload["seed"] + iteration * size
    return ImageNoise(
        NoiseRequest(
            shape=(4, payload["height"] // 8, payload["width"] // 8),
            seeds=tuple(first + (0 if strength else i) for i in range(size)),
            subseeds=tuple(payload.get("subseed", 0) + i for i in range(size)),
            subseed_strength=strength,
            source=NoiseSource(payload.get("override_settings", {}).get("randn_source", "CPU")),
        )
    )


def guided(payload: dict[str, Any], plan: SamplingRun, model: TinyModel) -> PlainGuidance:
    """The guidance of a recorded request."""
    return PlainGuidance(model, plan.spec, payload["cfg_scale"], payload["prompt"], payload["negative_prompt"])


def sample_recorded(payload: dict[str, Any], model: TinyModel, iteration: int = 0) -> tuple[Tensor, Tensor]:
    """First noise and final latents of one batch of a recorded txt2img request."""
    plan, noise = recorded_plan(payload, model), recorded_noise(payload, iteration)
    first = noise.first()
    with torch.no_grad():
        out = plan.run(guided(payload, plan, model), plan.start(first), plan.step_noise(noise), no_report)
    return first, out
