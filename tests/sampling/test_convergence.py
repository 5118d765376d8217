"""Samplers on the ideal denoiser of Gaussian data, where the exact result is known.

The probability flow takes x from sigma_0 to sigma as sqrt((s^2 + sigma^2) / (s^2 + sigma_0^2)) * x.
"""

import math

import pytest
import torch
from torch import Tensor

from modules.sampling.brownian import BrownianNoise
from modules.sampling.catalog import SAMPLERS, Family
from modules.sampling.noise import GaussianNoise, ImageNoise, NoiseRequest
from modules.sampling.types import SamplerOptions, StepNoise
from tests.sampling.walks import DATA_DEVIATION, LinearDenoise, no_report

START, END = 8.0, 0.2

# sampler, order of convergence without fresh noise
ORDERS = {
    "Euler": 1,
    "Euler a": 1,
    "DDIM": 1,
    "DDIM CFG++": 1,
    "Heun": 2,
    "DPM2": 2,
    "DPM2 a": 2,
    "Restart": 2,
    "DPM++ 2M": 2,
    "DPM++ 2S a": 2,
    "DPM++ SDE": 2,
    "DPM++ 2M SDE": 2,
    "DPM++ 2M SDE Heun": 2,
    "DPM++ 3M SDE": 2,
    "PLMS": 2,
    "LMS": 2,
    "UniPC": 2,
    "DPM fast": 3,
}


def _levels(steps: int, end: float = END) -> Tensor:
    """Sigmas evenly spaced in log sigma, without a final 0."""
    return torch.linspace(math.log(START), math.log(end), steps + 1).exp()


def _silence() -> StepNoise:
    return GaussianNoise(ImageNoise(NoiseRequest(shape=(1, 1, 1), seeds=(0,))))


def _error(name: str, steps: int) -> float:
    spec = SAMPLERS.get(name)
    sigmas = _levels(steps).double()
    if name == "DPM fast":
        sigmas = torch.cat([sigmas, sigmas.new_zeros(1)])[: steps + 2]
    x = torch.full((1, 1, 1, 1), START, dtype=torch.float64)
    out = spec.function(LinearDenoise(), x, sigmas, SamplerOptions(eta=0.0), _silence(), no_report)
    exact = START * math.sqrt((DATA_DEVIATION**2 + END**2) / (DATA_DEVIATION**2 + START**2))
    if spec.family is Family.TIMESTEP:
        exact /= math.sqrt(1 + END**2)
    return abs(out.item() - exact)


@pytest.mark.parametrize(("name", "order"), list(ORDERS.items()))
def test_the_error_shrinks_with_the_samplers_order(name: str, order: int) -> None:
    # Restart restarts from 20 steps on, so it is measured below; DPM fast ends in a first-order step where the number
    # of its calls, one more than this, is a multiple of 3.
    few, many = (8, 16) if name == "Restart" else (22, 46) if name == "DPM fast" else (24, 48)
    measured = math.log(_error(name, few) / _error(name, many)) / math.log(many / few)
    assert measured > order - 0.35


def test_every_sampler_ends_near_the_exact_result() -> None:
    for name in ORDERS:
        assert _error(name, 19) < (0.2 if ORDERS[name] == 1 else 0.02), name


STOCHASTIC = ("Euler a", "DPM2 a", "DPM++ 2S a", "DPM++ SDE", "DPM++ 2M SDE", "DPM++ 2M SDE Heun", "DPM++ 3M SDE")


@pytest.mark.parametrize("name", [*STOCHASTIC, "Restart", "DPM fast", "DPM adaptive"])
def test_stochastic_samplers_keep_the_datas_variance(name: str) -> None:
    spec = SAMPLERS.get(name)
    sigmas = torch.cat([_levels(60, end=0.02), torch.zeros(1)])
    noise = ImageNoise(NoiseRequest(shape=(4, 40, 40), seeds=(7,)))
    x = noise.first() * math.sqrt(START**2 + DATA_DEVIATION**2)
    step_noise = BrownianNoise((4, 40, 40), (7,), sigmas) if spec.brownian_noise else GaussianNoise(noise)
    out = spec.function(LinearDenoise(), x, sigmas, SamplerOptions(), step_noise, no_report)
    assert out.std().item() == pytest.approx(DATA_DEVIATION, rel=0.06)


def test_adaptive_steps_meet_the_tolerance() -> None:
    spec = SAMPLERS.get("DPM adaptive")
    sigmas = torch.tensor([START, END, 0.0])
    x = torch.full((1, 1, 1, 1), START)
    denoise = LinearDenoise()
    out = spec.function(denoise, x, sigmas, SamplerOptions(eta=0.0), _silence(), no_report)
    exact = START * math.sqrt((DATA_DEVIATION**2 + END**2) / (DATA_DEVIATION**2 + START**2))
    assert out.item() == pytest.approx(exact, rel=0.05)
    assert 9 <= denoise.calls <= 90
