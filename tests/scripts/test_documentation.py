"""The extension that docs/extensions.md shows does what it says, and its tables name what there is."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from modules.processing.engine import Engine
from modules.scripts.callbacks import Moment
from modules.scripts.library import filled_args
from modules.scripts.script import Script
from tests.recordings import tiny_engine
from tests.scripts.toys import extension, run, small_request

TEXT = (Path(__file__).parents[2] / "docs" / "extensions.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engine = tiny_engine(tmp_path)
    yield engine
    engine.unload()
    torch.set_num_threads(threads)


def test_the_examples_work(engine: Engine, tmp_path: Path) -> None:
    library = extension(tmp_path / "e", "\n".join(EXAMPLES))
    assert not library.faults
    args = filled_args(library.find("Twice"), [3])
    result = run(small_request(script="Twice", script_args=args), engine, tmp_path, library)
    assert not result.notices
    assert [picture.seed for picture in result.samples] == [5, 8]
    assert all("Stamp: mine" in picture.infotext for picture in result.samples)


def test_every_hook_and_callback_is_in_the_tables() -> None:
    hooks = [name for name in vars(Script) if not name.startswith("_")]
    others = {"title", "show", "ui", "run", "is_alwayson", "filename", "built", "pasted", "program"}
    assert [name for name in hooks if name not in others and f"`{name}" not in TEXT and f".{name}`" not in TEXT] == []
    assert [moment for moment in Moment if f"`on_{moment.value}`" not in TEXT] == []
