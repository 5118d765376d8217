"""Walks of flow models: the schedule, and samplers on the ideal flow of Gaussian data, whose result is known."""

import math

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor

from modules.errors import InvalidValueError
from modules.sampling.catalog import SAMPLERS, SCHEDULES, Family
from modules.sampling.flow import UNSTEADY, FlowSchedule, adds_noise, flow_denoise
from modules.sampling.noise import ImageNoise, NoiseRequest
from modules.sampling.plan import img2img_run, txt2img_run
from modules.sampling.schedules import ScheduleOptions, build_sigmas
from modules.sampling.types import SamplerOptions
from tests.sampling.walks import no_report

DATA_DEVIATION = 0.7
FLOW = FlowSchedule()
WALKING = [name for name, spec in SAMPLERS.items() if spec.family is Family.SIGMA]
TIMESTEPS = [name for name, spec in SAMPLERS.items() if spec.family is not Family.SIGMA]


def ideal_velocity(x: Tensor, t: Tensor) -> Tensor:
    """`noise - x0` as it is to be expected where x0 is Gaussian of deviation `DATA_DEVIATION`."""
    sigma = (t / 1000).to(x.dtype).reshape(-1, 1, 1, 1)
    variance = ((1 - sigma) * DATA_DEVIATION) ** 2 + sigma**2
    return (sigma - (1 - sigma) * DATA_DEVIATION**2) / variance * x


def sampled(name: str, steps: int, options: SamplerOptions | None = None, scheduler: str = "Automatic") -> Tensor:
    """The result of 48 images [48,4,16,16], and the noise they began with."""
    plan = txt2img_run(SAMPLERS.get(name), SCHEDULES.get(scheduler), steps, FLOW, options=options)
    noise = ImageNoise(NoiseRequest(shape=(4, 16, 16), seeds=tuple(range(48))), torch.device("cpu"))
    x = plan.start(noise.first())
    return plan.run(flow_denoise(ideal_velocity), x, plan.step_noise(noise), no_report)


def test_the_levels_are_those_of_diffusers() -> None:
    theirs = FlowMatchEulerDiscreteScheduler(shift=3.0).sigmas
    torch.testing.assert_close(FLOW.sigmas.flip(0), theirs, atol=1e-6, rtol=1e-6)
    assert FLOW.sigmas[-1] == 1
    index = torch.tensor([0.0, 10.25, 500.5, 999.0])
    torch.testing.assert_close(FLOW.sigma_to_t(FLOW.t_to_sigma(index)), index, atol=1e-2, rtol=1e-4)
    assert FLOW.sigma_to_t(torch.tensor([0.5]), quantize=True) % 1 == 0


@pytest.mark.parametrize("name", [name for name in WALKING if name not in UNSTEADY])
def test_each_sampler_makes_images_of_the_right_deviation(name: str) -> None:
    """With the error that so many steps leave; that of Euler's shrinks as their number grows (0.58, 0.64, 0.66, 0.68
    for 24, 48, 96, 192 steps of Euler a)."""
    steps = 192 if name.startswith("Euler") else 24
    rough = {"DPM adaptive": 0.16, "Restart": 0.12}
    assert float(sampled(name, steps).std()) == pytest.approx(DATA_DEVIATION, rel=rough.get(name, 0.06))


def test_a_sampler_that_goes_astray_says_so_and_what_helps() -> None:
    with pytest.raises(InvalidValueError, match="Choose Euler a"):
        sampled("DPM2 a", 24)
    assert float(sampled("DPM2 a", 24, SamplerOptions(eta=0.0)).std()) == pytest.approx(DATA_DEVIATION, rel=0.06)


@pytest.mark.parametrize("name", ["Euler", "Heun", "DPM++ 2M", "LMS"])
def test_without_noise_the_way_is_the_exact_one(name: str) -> None:
    noise = ImageNoise(NoiseRequest(shape=(4, 16, 16), seeds=tuple(range(48))), torch.device("cpu")).first()
    steps = 400 if name == "Euler" else 60
    torch.testing.assert_close(sampled(name, steps, scheduler="Simple"), noise * DATA_DEVIATION, atol=0.06, rtol=0.02)


def test_which_samplers_add_noise() -> None:
    still = SamplerOptions(eta=0.0)
    adding = {name for name in WALKING if adds_noise(SAMPLERS.get(name), SamplerOptions())}
    assert not adding & {"Euler", "Heun", "DPM2", "DPM++ 2M", "LMS"} and {"Euler a", "Restart"} <= adding
    assert not adds_noise(SAMPLERS.get("Euler a"), still) and adds_noise(SAMPLERS.get("Restart"), still)
    assert adds_noise(SAMPLERS.get("Euler"), SamplerOptions(s_churn=2.0))


@pytest.mark.parametrize("name", ["Euler", "Euler a"])
def test_an_image_is_noised_as_the_model_was_trained(name: str) -> None:
    plan = img2img_run(SAMPLERS.get(name), SCHEDULES.get("Simple"), 10, 4, FLOW)
    level = plan.sigmas[0].item() / (1 + plan.sigmas[0].item()) if plan.explodes else plan.sigmas[0].item()
    x = plan.start_from(torch.full((1, 16, 1, 1), 2.0), torch.ones(1, 16, 1, 1))
    seen = x * (1 - level) if plan.explodes else x
    torch.testing.assert_close(seen, torch.full_like(seen, 2 * (1 - level) + level))


@pytest.mark.parametrize("name", TIMESTEPS)
def test_samplers_that_need_timesteps_say_so(name: str) -> None:
    with pytest.raises(InvalidValueError, match="predict noise"):
        txt2img_run(SAMPLERS.get(name), SCHEDULES.get("Automatic"), 8, FLOW)


@pytest.mark.parametrize("scheduler", [spec.label for _, spec in SCHEDULES.items() if spec.name != "align_your_steps"])
def test_each_schedule_runs_from_noise_downwards(scheduler: str) -> None:
    sigmas = build_sigmas("Euler", scheduler, 10, FLOW)
    assert float(sigmas[0]) <= 1 + 1e-6 and bool((sigmas.diff() < 0).all()) and bool(sigmas.isfinite().all())
    assert float(sigmas[0]) > 0.9 and not math.isnan(float(sigmas[-1]))


def test_a_schedule_beyond_pure_noise_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"14\.6"):
        txt2img_run(SAMPLERS.get("Euler"), SCHEDULES.get("Align Your Steps"), 8, FLOW)
    with pytest.raises(InvalidValueError, match="end at 1"):
        options = ScheduleOptions(sigma_max=9.0)
        txt2img_run(SAMPLERS.get("Euler"), SCHEDULES.get("Karras"), 8, FLOW, options)
