"""Images with split feed-forwards: the same, and the network is as before afterwards."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from modules.errors import InvalidValueError, SettingsError
from modules.memory.feed_forward import options
from modules.processing.engine import feed_forward
from modules.processing.engine.engine import Engine
from modules.processing.engine.feed_forward import CHOICES, split_options, using_split_feed_forward
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings

TINY = Settings().changed(sd_model_checkpoint="tiny-sd1.safetensors", samples_save=False)


def image(engine: Engine, setting: str, **settings: str) -> "np.typing.NDArray[np.int16]":
    request = GenerationRequest(
        prompt="a cat",
        width=64,
        height=64,
        steps=2,
        seed=5,
        subseed=0,
        sampler="Euler",
        settings=TINY.with_changes({"split_feed_forward": setting, **settings}),
    )
    made = generate(request, engine, Output(Path()), Silent()).images[0]
    assert "feed" not in made.infotext.lower()
    return np.asarray(made.image, dtype=np.int16)


@pytest.mark.parametrize("fp8", ["Disable", "Enable"])
def test_images_stay_and_the_adapter_comes_back(engine: Engine, monkeypatch: pytest.MonkeyPatch, fp8: str) -> None:
    cuts: list[options.Pieces] = []
    original = options.pieces_for
    monkeypatch.setattr(feed_forward, "MIN_BYTES", 0)
    monkeypatch.setattr(feed_forward, "_budget", lambda device: 4096)
    monkeypatch.setattr(options, "MIN_TOKENS", 16)
    monkeypatch.setattr(
        "modules.memory.feed_forward.computing.pieces_for",
        lambda *args: cuts.append(original(*args)) or cuts[-1],
    )
    expected = image(engine, "Off", fp8_storage=fp8)
    assert not cuts
    for setting in ("4", "Automatic"):
        assert np.abs(image(engine, setting, fp8_storage=fp8) - expected).max() <= 1
        assert any(cut.splits > 1 or cut.chunk < 64 for cut in cuts)
        cuts.clear()
    assert np.array_equal(image(engine, "Off", fp8_storage=fp8), expected)


def test_automatic_cuts_tokens_only_where_memory_is_not_very_short() -> None:
    found = split_options("Automatic")
    assert found is not None
    size = options.CallSize(tokens=65536, hidden=1280, bytes_per_activation=8, whole_bytes=12)
    pieces = options.pieces_for(found, size, torch.device("cpu"))
    assert pieces.splits == 1 and pieces.chunk < 65536
    assert size.peak_bytes(pieces) <= 256 << 20


def test_an_exception_gives_the_adapter_back() -> None:
    adapter = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    with pytest.raises(ZeroDivisionError), using_split_feed_forward(adapter, "2"):
        assert "forward" in adapter.__dict__
        raise ZeroDivisionError
    assert "forward" not in adapter.__dict__


def test_only_the_choices_are_taken() -> None:
    assert [split_options(choice) is None for choice in CHOICES] == [True, False, False, False, False]
    with pytest.raises(InvalidValueError, match="Allowed: Off, Automatic, 2, 4, 8"):
        split_options("3")
    with pytest.raises(SettingsError, match="split_feed_forward"):
        Settings().with_changes({"split_feed_forward": "3"})
