"""What scripts put around the model for a pass: it is called, it combines, and it is gone afterwards."""

from pathlib import Path

import pytest

from modules.errors import InvalidValueError
from modules.memory.hook_chain import hooks_of
from modules.processing.engine.engine import Engine
from modules.scripts.library import ScriptLibrary, read_args
from tests.recordings import TINY
from tests.scripts.toys import extension, run, small_hires, small_request

SEEN = """
import modules.scripts as scripts

class Toy(scripts.Script):
    other_titles = ("Old toy",)
    seen = []
    def title(self):
        return "Toy"
    def show(self, is_img2img):
        return scripts.AlwaysVisible
    def ui(self, is_img2img):
        import gradio as gr
        return [gr.Slider(0, 10, value=1, step=1, label="Number")]
    def read_args(self, args, title):
        return [2 * args[0]] if title == "Old toy" else args
"""


def toy(folder: Path, *lines: str) -> ScriptLibrary:
    body = "".join(f"        {line}\n" for line in lines)
    return extension(folder, f"{SEEN}    def on_model(self, p, use, *args):\n{body}")


def test_rows_of_a_call_and_hooks_on_layers(engine: Engine, tmp_path: Path) -> None:
    library = toy(
        tmp_path / "e",
        "def watch(module, inner, *args, **kwargs):",
        "    self.seen.append((use.call, use.facts.is_hires, args[0].shape[0]))",
        "    return inner(*args, **kwargs)",
        "use.hook(use.model.unet, watch)",
    )
    request = small_request(prompt="a cat AND a dog", batch_size=2, hires=small_hires())
    result = run(request, engine, tmp_path, library)
    assert not result.notices
    seen = vars(type(library.scripts[0]))["seen"]
    assert [(call.step, is_hires, rows) for call, is_hires, rows in seen] == [
        (0, False, 6),
        (1, False, 6),
        (0, True, 6),
    ]
    assert seen[0][0].images == (0, 0, 1, 1, 0, 1)
    assert seen[0][0].is_negative == (False,) * 4 + (True,) * 2
    assert hooks_of(engine.model(TINY.name).unet) == []


def test_guidance_and_one_more_call(engine: Engine, tmp_path: Path) -> None:
    plain = run(small_request(), engine, tmp_path, ScriptLibrary()).samples[0].image
    same = toy(
        tmp_path / "same",
        "def check(guided):",
        "    again = guided.predict(guided.x, False)",
        "    assert float((again - guided.cond).abs().max()) < 1e-3",
        "    guided.cond = again",
        "use.before_guidance.append(check)",
    )
    result = run(small_request(), engine, tmp_path, same)
    assert not result.notices
    import numpy as np

    assert np.abs(np.asarray(result.samples[0].image).astype(int) - np.asarray(plain)).max() <= 1
    other = toy(tmp_path / "other", "use.guide('Toy', lambda guided: guided.uncond)")
    assert run(small_request(), engine, tmp_path, other).samples[0].image.tobytes() != plain.tobytes()


def test_two_that_take_the_place_of_guidance_are_refused(engine: Engine, tmp_path: Path) -> None:
    library = toy(tmp_path / "e", "use.guide('This', lambda g: g.cond)", "use.guide('That', lambda g: g.cond)")
    with pytest.raises(InvalidValueError, match="This and That both take the place"):
        run(small_request(), engine, tmp_path, library)


def test_other_titles_and_their_arguments(tmp_path: Path) -> None:
    library = toy(tmp_path / "e", "pass")
    script = library.find_alwayson("OLD TOY")
    assert read_args(script, [3], "Old toy") == (6,)
    assert read_args(script, [3], "Toy") == (3,)
    assert read_args(script, [], "Toy") == (1,)
