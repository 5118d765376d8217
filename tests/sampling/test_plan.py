import math
from typing import Any

import pytest
import torch

from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.discrete import DiscreteSchedule
from modules.sampling.plan import img2img_run, img2img_steps, txt2img_run
from tests.cases import for_each
from tests.sampling.recordings import facts

AUTOMATIC = SCHEDULES.get("automatic")


@for_each("recorded", facts()["setup_img2img_steps"], ids=str)
def test_img2img_step_counts_are_the_recorded_ones(recorded: dict[str, Any]) -> None:
    counts = img2img_steps(recorded["steps"], recorded["denoise"], recorded["fix"])
    assert list(counts) == recorded["result"]


def test_txt2img_scales_noise_by_the_first_sigma(sd1: DiscreteSchedule) -> None:
    plain = txt2img_run(SAMPLERS.get("Euler"), AUTOMATIC, 8, sd1)
    sgm = txt2img_run(SAMPLERS.get("Euler"), AUTOMATIC, 8, sd1, sgm_noise_multiplier=True)
    one = torch.ones(1, 4, 1, 1)
    assert plain.start(one)[0, 0].item() == pytest.approx(sd1.sigma_max)
    assert sgm.start(one)[0, 0].item() == pytest.approx(math.sqrt(1 + sd1.sigma_max**2))


def test_the_timestep_family_starts_from_unit_noise_in_its_own_scaling(sd1: DiscreteSchedule) -> None:
    plan = txt2img_run(SAMPLERS.get("DDIM"), AUTOMATIC, 8, sd1)
    sigma = plan.sigmas[0].item()
    assert sigma == pytest.approx(sd1.sigmas[876].item())
    assert plan.start(torch.ones(1, 4, 1, 1))[0, 0].item() / math.sqrt(1 + sigma**2) == pytest.approx(1)


def test_img2img_runs_the_tail_of_the_schedule(sd1: DiscreteSchedule) -> None:
    plan = img2img_run(SAMPLERS.get("DPM++ 2M SDE"), AUTOMATIC, 10, 4, sd1)
    assert len(plan.sigmas) - 1 == 5
    assert torch.equal(plan.sigmas, plan.all_sigmas[5:])
    latent, noise = torch.full((1, 4, 1, 1), 2.0), torch.ones(1, 4, 1, 1)
    assert plan.start_from(latent, noise)[0, 0].item() == pytest.approx(2 + plan.sigmas[0].item())


def test_img2img_of_the_timestep_family_noises_one_timestep_higher(sd1: DiscreteSchedule) -> None:
    plan = img2img_run(SAMPLERS.get("DDIM"), AUTOMATIC, 10, 4, sd1)
    assert torch.equal(plan.sigmas, sd1.sigmas[[301, 201, 101, 1]])
    alpha = sd1.alphas_cumprod[401].item()
    x = plan.start_from(torch.ones(1, 4, 1, 1), torch.zeros(1, 4, 1, 1)) / math.sqrt(1 + plan.sigmas[0].item() ** 2)
    assert x[0, 0].item() == pytest.approx(math.sqrt(alpha))


def test_dpm_fast_picks_its_steps_over_the_models_whole_range(sd1: DiscreteSchedule) -> None:
    plan = txt2img_run(SAMPLERS.get("DPM fast"), SCHEDULES.get("sgm_uniform"), 8, sd1)
    assert plan.options.sigma_range == (sd1.sigma_min, sd1.sigma_max)
    assert img2img_run(SAMPLERS.get("DPM fast"), AUTOMATIC, 8, 3, sd1).options.sigma_range is None
