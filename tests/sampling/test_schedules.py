import itertools

import pytest
import torch

from modules.errors import InvalidValueError, UnknownNameError
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.discrete import DiscreteSchedule
from modules.sampling.schedules import ALIGN_YOUR_STEPS_1024, ScheduleOptions, build_sigmas
from tests.cases import for_each
from tests.sampling.recordings import parts

RECORDED = [name for name in parts() if name.startswith("sigmas/")]


@for_each("name", RECORDED)
def test_sigmas_are_the_recorded_ones(name: str, sd1: DiscreteSchedule) -> None:
    _, sampler, scheduler, steps = name.split("/")
    sigmas = build_sigmas(sampler, scheduler, int(steps), sd1)
    assert sigmas.dtype == torch.float32
    torch.testing.assert_close(sigmas, parts()[name], rtol=5e-7, atol=0)


@for_each(("sampler", "scheduler"), itertools.product(SAMPLERS, SCHEDULES))
def test_every_pair_descends(sampler: str, scheduler: str, sd1: DiscreteSchedule) -> None:
    for steps in (1, 2, 7, 20, 150):
        sigmas = build_sigmas(sampler, scheduler, steps, sd1)
        assert bool((sigmas[1:] <= sigmas[:-1]).all()), (steps, sigmas)
        assert torch.isfinite(sigmas).all()
        assert sigmas[0] > 0


def test_overrides_set_the_range_and_the_curve(sd1: DiscreteSchedule) -> None:
    options = ScheduleOptions(sigma_min=0.1, sigma_max=10, rho=5.0)
    sigmas = build_sigmas("Euler", "Karras", 9, sd1, options)
    assert sigmas[0].item() == pytest.approx(10)
    assert sigmas[-2].item() == pytest.approx(0.1)
    assert sigmas[4].item() == pytest.approx(((10**0.2 + 0.1**0.2) / 2) ** 5)


def test_old_karras_sigmas_run_from_10_to_a_tenth(sd1: DiscreteSchedule) -> None:
    sigmas = build_sigmas("DPM++ 2M", "Automatic", 5, sd1, ScheduleOptions(old_karras_sigmas=True))
    assert sigmas[0].item() == pytest.approx(10)
    assert sigmas[-2].item() == pytest.approx(0.1)


def test_discarding_the_penultimate_sigma_keeps_the_step_count(sd1: DiscreteSchedule) -> None:
    kept = build_sigmas("Euler", "Karras", 8, sd1, ScheduleOptions(discard_penultimate=True))
    longer = build_sigmas("Euler", "Karras", 9, sd1)
    assert torch.equal(kept, torch.cat([longer[:-2], longer[-1:]]))


def test_the_beta_schedule_follows_its_parameters(sd1: DiscreteSchedule) -> None:
    flat = build_sigmas("Euler", "Beta", 11, sd1, ScheduleOptions(beta_alpha=1.0, beta_beta=1.0))
    expected = torch.linspace(sd1.sigma_max, sd1.sigma_min, 11)
    torch.testing.assert_close(flat[:-1], expected)


def test_sdxl_has_its_own_align_your_steps_table(sd1: DiscreteSchedule) -> None:
    options = ScheduleOptions(align_your_steps=ALIGN_YOUR_STEPS_1024)
    sigmas = build_sigmas("Euler", "Align Your Steps", 11, sd1, options)
    assert sigmas[1].item() == pytest.approx(6.315)


def test_mistakes_say_what_is_wrong(sd1: DiscreteSchedule) -> None:
    with pytest.raises(InvalidValueError, match=r"steps is 0; it must be at least 1"):
        build_sigmas("Euler", "Karras", 0, sd1)
    with pytest.raises(InvalidValueError, match=r"smallest sigma 3 is not below its largest 2"):
        ScheduleOptions(sigma_min=3, sigma_max=2)
    with pytest.raises(InvalidValueError, match="cannot be negative"):
        ScheduleOptions(sigma_min=-1)
    with pytest.raises(InvalidValueError, match="not downwards"):
        build_sigmas("Euler", "Karras", 5, sd1, ScheduleOptions(sigma_min=20))
    with pytest.raises(InvalidValueError, match="must be above 0"):
        ScheduleOptions(beta_alpha=0)
    with pytest.raises(InvalidValueError, match="2000 steps asked of a model with 1000"):
        build_sigmas("DDIM", "Automatic", 2000, sd1)
    with pytest.raises(UnknownNameError, match="Did you mean 'karras'"):
        build_sigmas("Euler", "Karas", 5, sd1)
