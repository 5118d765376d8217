"""Forecast steps from settings to images: fewer calls of the model, recorded, restored, and off where they would be
wrong."""

from pathlib import Path

import pytest
import torch

from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.processing.engine.engine import Engine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.result import Result
from modules.sampling.forecast import ForecastOptions, called_steps
from modules.settings.values import Settings
from tests.recordings import TINY
from tests.scripts.toys import small_hires, small_request


def make(engine: Engine, folder: Path, strength: float, **values: object) -> tuple[Result, int]:
    """The images, and how often the UNet was called for them."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    handle = engine.model(TINY.name).unet.register_forward_hook(count)
    request = small_request(**{"steps": 12, "settings": {"forecast_strength": strength}, **values})
    result = generate(request, engine, Output(folder), Silent())
    handle.remove()
    return result, calls


@pytest.mark.parametrize("sampler", ["Euler", "DPM++ 2M", "DDIM"])
def test_fewer_calls_are_made_recorded_and_restored(sampler: str, engine: Engine, tmp_path: Path) -> None:
    whole, calls = make(engine, tmp_path, 0.0, sampler=sampler)
    result, fewer = make(engine, tmp_path, 0.5, sampler=sampler)
    assert calls == 12
    strength = 0.375 if sampler == "DPM++ 2M" else 0.5
    # the last step of a schedule that ends in much noise is a call too
    assert fewer - (sampler == "DDIM") == sum(called_steps(12, ForecastOptions(strength)))
    assert result.samples[0].image.tobytes() != whole.samples[0].image.tobytes()
    text = result.samples[0].infotext
    assert "Forecast steps: 0.5" in text
    assert "Forecast steps" not in whole.samples[0].infotext
    assert override_settings_from(parse_infotext(text), Settings())["forecast_strength"] == 0.5


@pytest.mark.parametrize(
    "values", [{"sampler": "Euler a"}, {"sampler": "Heun"}, {"steps": 5}], ids=["noise", "two calls", "few steps"]
)
def test_where_it_would_be_wrong_every_call_is_made(values: dict[str, object], engine: Engine, tmp_path: Path) -> None:
    whole, calls = make(engine, tmp_path, 0.0, **values)
    result, same = make(engine, tmp_path, 0.5, **values)
    assert same == calls
    assert result.samples[0].image.tobytes() == whole.samples[0].image.tobytes()
    assert "Forecast steps" not in result.samples[0].infotext


def test_prompt_editing_begins_a_new_history(engine: Engine, tmp_path: Path) -> None:
    _, plain = make(engine, tmp_path, 0.5, prompt="a red cat")
    _, edited = make(engine, tmp_path, 0.5, prompt="a [red:blue:6] cat")
    assert 12 > edited > plain


def test_a_second_pass_has_its_own_history(engine: Engine, tmp_path: Path) -> None:
    result, calls = make(engine, tmp_path, 0.5, hires=small_hires())
    assert calls == sum(called_steps(12, ForecastOptions(0.5))) + 1
    assert torch.isfinite(torch.tensor(result.samples[0].image.getextrema()).float()).all()
