"""LMS and PLMS against diffusers' schedulers, on a model that is no line; LMS's weights against scipy's integrals."""

import math

import pytest
import torch
from diffusers import LMSDiscreteScheduler, PNDMScheduler
from scipy import integrate
from torch import Tensor

from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.denoisers import denoise_for
from modules.sampling.discrete import DiscreteSchedule, scaled_linear_alphas_cumprod
from modules.sampling.lms import multistep_coefficients
from modules.sampling.noise import ImageNoise, NoiseRequest
from modules.sampling.plan import txt2img_run
from tests.sampling.walks import no_report

STEPS = 20
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def predicted_noise(x: Tensor, t: Tensor | float) -> Tensor:
    """As of a guided model: it changes with the timestep, and by more than x does."""
    return x - 1.5 * torch.tanh(2 * x) * (1 - torch.as_tensor(t).double().view(-1, 1, 1, 1) / 1000)


def ours(name: str, noise: Tensor) -> Tensor:
    spec = SAMPLERS.get(name)
    schedule = DiscreteSchedule(scaled_linear_alphas_cumprod())
    run = txt2img_run(spec, SCHEDULES.get("automatic"), STEPS, schedule)
    step_noise = run.step_noise(ImageNoise(NoiseRequest(shape=(1, 4, 4), seeds=(0,))))
    return run.run(denoise_for(spec, predicted_noise, schedule), run.start(noise), step_noise, no_report)


def noise() -> Tensor:
    return torch.randn((1, 1, 4, 4), generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_lms_takes_the_steps_of_diffusers() -> None:
    scheduler = LMSDiscreteScheduler(**BETAS, timestep_spacing="linspace")
    scheduler.set_timesteps(STEPS)
    x = noise() * float(scheduler.init_noise_sigma)
    for t in scheduler.timesteps:
        x = scheduler.step(predicted_noise(scheduler.scale_model_input(x, t), t), t, x).prev_sample
    assert torch.allclose(ours("LMS", noise()), x, rtol=1e-3, atol=1e-3)


def test_plms_takes_the_steps_of_diffusers_to_the_last_timestep() -> None:
    """At which the reference UI ends; diffusers takes one step more, from there to alphas_cumprod[0]."""
    scheduler = PNDMScheduler(**BETAS, skip_prk_steps=True, steps_offset=1)
    scheduler.set_timesteps(STEPS)
    x = noise()
    for t in scheduler.timesteps[:-1]:
        x = scheduler.step(predicted_noise(x, t), int(t), x).prev_sample
    assert torch.allclose(ours("PLMS", noise()), x, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("past", [[5.0], [5.0, 7.0], [5.0, 7.0, 8.0], [5.0, 7.0, 8.0, 14.6]])
def test_the_weights_of_lms_are_integrals_of_lagrange_polynomials(past: list[float]) -> None:
    for own, weight in zip(past, multistep_coefficients(past, 5.0, 3.2), strict=True):

        def lagrange(sigma: float, own: float = own) -> float:
            return math.prod((sigma - other) / (own - other) for other in past if other != own)

        assert weight == pytest.approx(integrate.quad(lagrange, 5.0, 3.2)[0], abs=1e-10)
