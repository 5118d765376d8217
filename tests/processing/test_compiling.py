"""The setting "Compile blocks" in image jobs: the same image, recorded and restored, and a notice where it has no
effect."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.memory import compiling
from modules.processing.engine.engine import Engine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.result import Result
from modules.settings.values import Settings
from tests.recordings import tiny_engine
from tests.scripts.toys import small_request


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    torch._dynamo.reset()
    engine = tiny_engine(tmp_path)
    yield engine
    engine.unload()
    torch._dynamo.reset()


def make(engine: Engine, folder: Path, **settings: object) -> Result:
    request = small_request(steps=1, settings=settings)
    return generate(request, engine, Output(folder), Silent())


def test_images_stay_and_say_so(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        forward: Callable[..., Any] = graph.forward
        return forward

    monkeypatch.setattr("modules.processing.engine.compiling.compiler_problem", lambda device: None)
    engine.compiled.backend = backend
    whole = make(engine, tmp_path)
    result = make(engine, tmp_path, torch_compile=True)
    assert graphs and engine.compiled.problem is None
    first, second = (np.asarray(made.samples[0].image).astype(int) for made in (whole, result))
    assert np.abs(first - second).max() <= 1
    text = result.samples[0].infotext
    assert "Torch compile: True" in text and "Torch compile" not in whole.samples[0].infotext
    assert override_settings_from(parse_infotext(text), Settings())["torch_compile"] is True


def test_without_a_compiler_a_notice_says_what_to_do(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "modules.processing.engine.compiling.compiler_problem",
        lambda device: compiling.compiler_problem(device, lambda name: None, {}),
    )
    result = make(engine, tmp_path, torch_compile=True)
    assert any("torch.compile has no effect" in note and "install g++" in note for note in result.notices)
