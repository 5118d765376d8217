import pytest
import torch
from torch import Tensor

from modules.sampling.discrete import (
    ZERO_SNR_LAST_ALPHA_BAR,
    DiscreteSchedule,
    LcmSchedule,
    downcast_alphas_cumprod,
    interpolate_index,
    rescale_zero_terminal_snr,
    scaled_linear_alphas_cumprod,
)
from tests.sampling.recordings import facts


def test_the_range_is_the_recorded_one(sd1: DiscreteSchedule) -> None:
    # The smallest sigma there is LCM's: it was the last sampler to run.
    recorded = facts()["model_sigmas"]
    assert sd1.sigma_max == recorded["max"]
    assert LcmSchedule(sd1).sigmas[0].item() == pytest.approx(recorded["min"], rel=1e-7)
    assert sd1.sigma_min == pytest.approx(0.029167533)


def test_timesteps_and_sigmas_lead_back_to_each_other(sd1: DiscreteSchedule) -> None:
    t = torch.linspace(0, 999, 173)
    torch.testing.assert_close(sd1.sigma_to_t(sd1.t_to_sigma(t)), t, rtol=0, atol=2e-3)
    torch.testing.assert_close(sd1.vp_sigma_to_t(sd1.vp_t_to_sigma(t.double())), t, rtol=0, atol=2e-3)


def test_trained_timesteps_are_met_exactly(sd1: DiscreteSchedule) -> None:
    assert torch.equal(sd1.vp_sigma_to_t(sd1.sigmas), torch.arange(1000.0))
    assert torch.equal(sd1.sigma_to_t(sd1.sigmas, quantize=True), torch.arange(1000.0))


def test_quantizing_picks_the_nearest_timestep() -> None:
    schedule = DiscreteSchedule(scaled_linear_alphas_cumprod(), quantize=True)
    assert schedule.sigma_to_t(schedule.t_to_sigma(torch.tensor([3.4, 700.6]))).tolist() == [3, 701]


def test_sigmas_outside_the_range_are_clamped(sd1: DiscreteSchedule) -> None:
    assert sd1.sigma_to_t(torch.tensor([1e-4, 99.0])).tolist() == [0, 999]


def test_zero_terminal_snr_keeps_the_first_and_ends_in_noise() -> None:
    alphas = scaled_linear_alphas_cumprod()
    rescaled = rescale_zero_terminal_snr(alphas)
    assert rescaled[0].item() == pytest.approx(alphas[0].item())
    assert rescaled[-1].item() == pytest.approx(ZERO_SNR_LAST_ALPHA_BAR)
    assert DiscreteSchedule(rescaled).sigma_max == pytest.approx(4518.76, rel=1e-3)


def test_downcast_alphas_move_the_sigmas_a_little(sd1: DiscreteSchedule) -> None:
    downcast = DiscreteSchedule(downcast_alphas_cumprod(sd1.alphas_cumprod))
    assert downcast.sigmas.dtype == torch.float32
    assert not torch.equal(downcast.sigmas, sd1.sigmas)
    assert downcast.sigma_max == pytest.approx(sd1.sigma_max, rel=2e-2)


def test_lcm_knows_every_twentieth_timestep(sd1: DiscreteSchedule) -> None:
    lcm = LcmSchedule(sd1)
    assert len(lcm.sigmas) == 50
    assert lcm.sigma_to_t(torch.tensor([99.0, lcm.sigmas[3].item(), 1e-3])).tolist() == [999, 79, 19]


@pytest.mark.parametrize(
    "alphas", [scaled_linear_alphas_cumprod(), downcast_alphas_cumprod(scaled_linear_alphas_cumprod())]
)
def test_interpolation_on_the_cpu_has_the_bits_of_the_one_on_a_device(alphas: Tensor) -> None:
    ascending = DiscreteSchedule(alphas).log_sigmas
    values = torch.cat([ascending, torch.linspace(-6, 9, 5001)])
    low = (torch.searchsorted(ascending, values, right=True) - 1).clamp(0, len(ascending) - 2)
    below, above = ascending[low], ascending[low + 1]
    expected = low + ((values - below) / (above - below)).clamp(0, 1)
    torch.testing.assert_close(interpolate_index(values, ascending), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("steps", [4, 8, 20, 28])
def test_halfway_between_two_lcm_timesteps_is_the_less_noisy_to_the_last_bit(sd1: DiscreteSchedule, steps: int) -> None:
    lcm = LcmSchedule(sd1)
    times = torch.linspace(999, 19, steps + 1)[:-1]  # as SGM Uniform spaces them
    index = (times - 19) / 20
    middle = (index - index.floor() - 0.5).abs() < 1e-3
    assert middle.any()
    sigmas = lcm.t_to_sigma(times)[middle]
    expected = index[middle].floor() * 20 + 19
    for sigma in (sigmas, sigmas.nextafter(torch.zeros(1)), sigmas.nextafter(torch.full((1,), 99.0))):
        assert torch.equal(lcm.sigma_to_t(sigma), expected)
