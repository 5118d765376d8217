"""Forecast outputs: which steps are calls, what the fit keeps exactly, and when nothing may be forecast."""

import math

import pytest
import torch

from modules.sampling.catalog import SAMPLERS
from modules.sampling.forecast import Forecast, ForecastOptions, called_steps, forecast_problem, forecast_weights

HALF = ForecastOptions(0.5)


def test_calls_at_the_first_steps_then_ever_rarer_then_at_the_last() -> None:
    called = called_steps(20, HALF)
    assert called[:4] == [True] * 4
    assert called[18:] == [True, True]
    assert sum(called) == 11
    gaps = "".join("x" if call else "." for call in called[4:18])
    assert gaps.startswith(".x.x..x")


@pytest.mark.parametrize("total", [8, 9, 20, 50, 150])
def test_more_strength_means_fewer_calls(total: int) -> None:
    counts = [sum(called_steps(total, ForecastOptions(strength))) for strength in (0.05, 0.25, 0.5, 1.0)]
    assert counts == sorted(counts, reverse=True)
    assert all(called_steps(total, ForecastOptions(strength))[-1] for strength in (0.05, 1.0))


@pytest.mark.parametrize("blend", [0.0, 0.4, 1.0])
def test_constants_are_kept_and_lines_nearly(blend: float) -> None:
    times = [-1.0, -0.9, -0.8, -0.7, -0.5]
    weights = forecast_weights(times, -0.3, ForecastOptions(0.5, blend=blend, ridge=1e-9))
    assert math.isclose(sum(weights), 1.0, abs_tol=1e-6)
    line = sum(weight * (2 + 3 * time) for weight, time in zip(weights, times, strict=True))
    assert math.isclose(line, 2 + 3 * -0.3, abs_tol=1e-4)


def test_a_smooth_trajectory_is_followed() -> None:
    """Outputs that bend: the forecast is closer than the last output is."""
    forecast, x = Forecast(20, HALF), torch.zeros(1, 4, 2, 2)
    forecast_errors, stale_errors, before = [], [], None
    for step in range(20):
        sigma = torch.tensor([14.6 * 0.72**step])
        true = -torch.full((1, 4, 2, 2), math.sin(step / 5)) * sigma
        guess = forecast.denoised(step, x, sigma)
        if guess is None:
            forecast.take(x, sigma, true)
            before = true / sigma
        else:
            assert before is not None
            forecast_errors.append(float((guess - true).abs().max() / sigma))
            stale_errors.append(float((before - true / sigma).abs().max()))
    assert forecast.forecast == len(forecast_errors) == 9
    assert max(forecast_errors) < 0.35 * max(stale_errors)


def test_another_prompt_begins_a_new_history() -> None:
    forecast, x, sigma = Forecast(20, HALF), torch.zeros(1, 4, 2, 2), torch.ones(1)
    for _ in range(4):
        forecast.take(x, sigma, x)
    assert forecast.denoised(4, x, sigma) is not None
    forecast.reset()
    assert forecast.denoised(4, x, sigma) is None


def test_a_call_more_than_was_expected_is_made() -> None:
    forecast, x, sigma = Forecast(8, HALF), torch.zeros(1, 4, 2, 2), torch.ones(1)
    for _ in range(8):
        forecast.take(x, sigma, x)
    assert forecast.denoised(8, x, sigma) is None
    assert forecast.denoised(30, x, sigma) is None


@pytest.mark.parametrize(
    ("sampler", "eta", "churn", "words"),
    [
        ("Euler a", 1.0, 0.0, "adds noise"),
        ("DPM++ 2M SDE", 0.0, 0.0, "adds noise"),
        ("LCM", 0.0, 0.0, "adds noise"),
        ("Restart", 0.0, 0.0, "adds noise"),
        ("Euler", 0.0, 5.0, "adds noise"),
        ("DDIM", 0.5, 0.0, "adds noise"),
        ("Heun", 0.0, 0.0, "once per step"),
        ("DPM adaptive", 0.0, 0.0, "once per step"),
        ("DDIM CFG++", 0.0, 0.0, "once per step"),
    ],
)
def test_samplers_that_it_would_spoil(sampler: str, eta: float, churn: float, words: str) -> None:
    assert words in (forecast_problem(SAMPLERS.get(sampler), 20, eta, churn) or "")


@pytest.mark.parametrize("sampler", ["Euler", "DPM++ 2M", "LMS", "DDIM", "PLMS", "UniPC", "Euler a"])
def test_deterministic_samplers(sampler: str) -> None:
    assert forecast_problem(SAMPLERS.get(sampler), 20, 0.0, 0.0) is None
    assert "fewer than 8" in (forecast_problem(SAMPLERS.get(sampler), 7, 0.0, 0.0) or "")
