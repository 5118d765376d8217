"""Forecast outputs: which steps are calls, what the fit keeps exactly, and when nothing may be forecast."""

import math

import pytest
import torch

from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.forecast import (
    Forecast,
    ForecastOptions,
    called_steps,
    forecast_problem,
    forecast_weights,
    usable_strength,
)

HALF = ForecastOptions(0.5)


def shown(called: list[bool]) -> str:
    return "".join("x" if call else "." for call in called)


def test_calls_at_the_first_steps_then_ever_rarer() -> None:
    assert shown(called_steps(20, HALF)) == "xxxxxxxxx.x..x...x.."
    assert shown(called_steps(20, ForecastOptions(1.0))) == "xxxx..x....x......x."
    assert shown(called_steps(8, HALF)) == "xxxx.x.."


@pytest.mark.parametrize("total", [8, 9, 20, 50, 150])
def test_more_strength_means_fewer_calls(total: int) -> None:
    counts = [sum(called_steps(total, ForecastOptions(strength))) for strength in (0.05, 0.25, 0.5, 1.0)]
    assert counts == sorted(counts, reverse=True)
    assert all(all(called_steps(total, ForecastOptions(strength))[:4]) for strength in (0.05, 1.0))


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
    assert forecast.forecast == len(forecast_errors) == 8
    assert max(forecast_errors) < 0.35 * max(stale_errors)


def swinging(step: int) -> float:
    """Outputs that go up and down from step to step, around a level."""
    return 1.0 + (0.5 if step % 2 else -0.5)


def test_where_outputs_swing_the_last_one_stays() -> None:
    """Of two images in one batch, one swings and one goes on in a straight line: each is forecast in its own way."""
    forecast, x = Forecast(20, HALF), torch.zeros(2, 1, 2, 2)
    for step in range(10):
        sigma = torch.full((2,), 14.6 * 0.72**step)
        outputs = torch.tensor([swinging(step), 1.0 + step]).view(2, 1, 1, 1).expand_as(x)
        guess = forecast.denoised(step, x, sigma)
        if guess is None:
            forecast.take(x, sigma, x - outputs * sigma.view(-1, 1, 1, 1))
    assert guess is not None and step == 9
    found = (-guess / sigma.view(-1, 1, 1, 1))[:, 0, 0, 0]
    assert found[0] == pytest.approx(swinging(8), abs=1e-4)
    assert found[1] == pytest.approx(10.0, abs=0.2)
    alone = Forecast(20, HALF)
    for step in range(9):
        sigma = torch.tensor([14.6 * 0.72**step])
        alone.take(x[1:], sigma, x[1:] - (1.0 + step) * sigma)
    same = alone.denoised(9, x[1:], torch.tensor([14.6 * 0.72**9]))
    assert same is not None and torch.allclose(same, guess[1:], rtol=1e-5)


def test_the_last_step_is_a_call_where_much_noise_is_left() -> None:
    forecast, x = Forecast(20, HALF), torch.zeros(1, 4, 2, 2)
    for step in range(8):
        forecast.take(x, torch.tensor([10.0 - step]), x)
    assert forecast.denoised(19, x, torch.tensor([0.2])) is None
    assert forecast.denoised(19, x, torch.tensor([0.03])) is not None


def test_another_prompt_begins_a_new_history() -> None:
    forecast, x, sigma = Forecast(20, HALF), torch.zeros(1, 4, 2, 2), torch.ones(1)
    for _ in range(9):
        forecast.take(x, sigma, x)
    assert forecast.denoised(9, x, sigma) is not None
    forecast.reset()
    assert forecast.denoised(9, x, sigma) is None


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


@pytest.mark.parametrize(
    ("sampler", "scheduler", "strength"),
    [
        ("Euler", "Uniform", 0.5),
        ("Euler", "Karras", 0.5),
        ("DPM++ 2M", "Karras", 0.5),
        ("DPM++ 2M", "Automatic", 0.5),
        ("DPM++ 2M", "Uniform", 0.25),
        ("LMS", "Karras", 0.25),
        ("UniPC", "Automatic", 0.25),
        ("DDIM", "Automatic", 0.5),
    ],
)
def test_solvers_of_several_steps_are_called_more_often(sampler: str, scheduler: str, strength: float) -> None:
    assert usable_strength(SAMPLERS.get(sampler), SCHEDULES.get(scheduler), 0.5) == strength
