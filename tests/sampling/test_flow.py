"""Walks of flow models: the schedule, and samplers on the ideal flow of Gaussian data, whose result is known."""

import math
from dataclasses import replace

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from torch import Tensor

from modules.errors import InvalidValueError
from modules.sampling.catalog import SAMPLERS, SCHEDULES, OnFlow
from modules.sampling.flow import UNSTEADY, FlowSchedule, adds_noise, flow_denoise
from modules.sampling.noise import ImageNoise, NoiseRequest
from modules.sampling.plan import img2img_run, txt2img_run
from modules.sampling.schedules import ScheduleOptions, build_sigmas
from modules.sampling.types import SamplerOptions
from tests.sampling.walks import no_report

DATA_DEVIATION = 0.7
FLOW = FlowSchedule()
WALKING = [name for name, spec in SAMPLERS.items() if spec.on_flow is not OnFlow.REFUSED]


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


@pytest.mark.parametrize("name", [name for name in WALKING if name not in (*UNSTEADY, "LCM")])
def test_each_sampler_makes_images_of_the_right_deviation(name: str) -> None:
    """With the error that so many steps leave; that of Euler's shrinks as their number grows (0.58, 0.64, 0.66, 0.68
    for 24, 48, 96, 192 steps of Euler a)."""
    steps = 192 if name in ("Euler", "Euler a", "DDIM") else 24
    rough = {"DPM adaptive": 0.3, "Restart": 0.12}  # which steps are taken may hang on a rounding
    assert float(sampled(name, steps).std()) == pytest.approx(DATA_DEVIATION, rel=rough.get(name, 0.06))


def test_a_sampler_that_goes_astray_says_so_and_what_helps() -> None:
    with pytest.raises(InvalidValueError, match="Choose Euler a"):
        sampled("DPM2 a", 24)
    assert float(sampled("DPM2 a", 24, SamplerOptions(eta=0.0)).std()) == pytest.approx(DATA_DEVIATION, rel=0.06)


@pytest.mark.parametrize("name", ["Euler", "Heun", "DPM++ 2M", "LMS", "UniPC"])
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


def test_ddim_is_euler_and_takes_eta() -> None:
    still = sampled("DDIM", 12, scheduler="Beta")
    torch.testing.assert_close(still, sampled("Euler", 12, scheduler="Beta"), atol=1e-5, rtol=1e-5)
    noisy = sampled("DDIM", 192, SamplerOptions(eta=1.0))
    assert float(noisy.std()) == pytest.approx(DATA_DEVIATION, rel=0.06)
    assert float((noisy - still).abs().mean()) > 0.1


def test_lcm_noises_what_it_sees_as_the_flow_does() -> None:
    """x0, then `(1 - sigma) * x0 + sigma * noise` to the next level (Luo et al. 2023, algorithm 3)."""
    x0 = torch.linspace(-1, 1, 1024).reshape(1, 4, 16, 16)
    seen: list[tuple[Tensor, float]] = []

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        sigma = float(t) / 1000
        seen.append((x, sigma))
        return (x - x0) / sigma

    plan = txt2img_run(SAMPLERS.get("LCM"), SCHEDULES.get("Simple"), 4, FLOW)
    noise = ImageNoise(NoiseRequest(shape=(4, 16, 16), seeds=(1,)), torch.device("cpu"))
    result = plan.run(flow_denoise(velocity), plan.start(noise.first()), plan.step_noise(noise), no_report)
    torch.testing.assert_close(result, x0, atol=1e-3, rtol=0)
    assert [sigma for _, sigma in seen] == pytest.approx([1.0, 0.9, 0.75, 0.5], abs=1e-3)
    again = ImageNoise(NoiseRequest(shape=(4, 16, 16), seeds=(1,)), torch.device("cpu"))
    draws = [again.first(), *(again.next() for _ in seen[1:])]
    for (x, sigma), drawn in zip(seen, draws, strict=True):
        torch.testing.assert_close(x, (1 - sigma) * x0 + sigma * drawn, atol=2e-3, rtol=0)


def test_unipc_is_that_of_diffusers() -> None:
    sigmas = [0.9, 0.75, 0.6, 0.45, 0.3, 0.1]
    theirs = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, solver_order=3, solver_type="bh2"
    )
    theirs.set_timesteps(len(sigmas))
    theirs.sigmas, theirs.timesteps = torch.tensor([*sigmas, 0.0]), torch.tensor(sigmas) * 1000
    x = wanted = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    for time in theirs.timesteps:
        wanted = theirs.step(ideal_velocity(wanted, time.reshape(1)), time, wanted).prev_sample
    exploding = FLOW.exploding(torch.tensor([*sigmas, 0.0]))
    options = SamplerOptions(uni_pc_variant="bh2")
    plan = txt2img_run(SAMPLERS.get("UniPC"), SCHEDULES.get("Simple"), len(sigmas), FLOW, options=options)
    run = replace(plan, sigmas=exploding, all_sigmas=exploding)
    noise = ImageNoise(NoiseRequest(shape=(4, 8, 8), seeds=(1,)), torch.device("cpu"))
    found = run.run(flow_denoise(ideal_velocity), x / (1 - sigmas[0]), run.step_noise(noise), no_report)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name not in WALKING])
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
