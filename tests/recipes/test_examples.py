"""The examples: what they draw, and the command that draws and trains them."""

import json
from pathlib import Path
from random import Random

import pytest
from PIL import Image

from modules.models.files.header import read_metadata
from recipes.loras.balloon import draw_balloon
from recipes.loras.blueprint import LINE, PAPER, as_blueprint
from recipes.loras.command import main
from recipes.loras.example import EXAMPLES, SHIPPED


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_examples_draw_the_same_from_the_same_seed(name: str) -> None:
    draw = EXAMPLES.get(name).draw
    one, again, other = draw(Random(3)), draw(Random(3)), draw(Random(4))
    assert one.image.tobytes() == again.image.tobytes() != other.image.tobytes()
    assert one.captions == again.captions
    assert one.image.size == (128, 128)
    drawn = [draw(Random(seed)) for seed in range(40)]
    share = sum(EXAMPLES.get(name).activation in image.captions[0] for image in drawn) / len(drawn)
    assert share == 1.0 if name == "blueprint" else 0.6 < share < 0.95


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_examples_are_trained_by_a_preset_of_the_page(name: str, tmp_path: Path) -> None:
    config = EXAMPLES.get(name).config(tmp_path, name)
    assert config.output.trigger == EXAMPLES.get(name).activation
    assert config.data.prefix == ""  # the word stands in the captions already
    assert Path(config.model.checkpoint) == SHIPPED


def test_a_blueprint_has_lines_where_colors_meet() -> None:
    image = Image.new("RGB", (64, 64), "red")
    image.paste("green", (32, 0, 64, 64))
    blueprint = as_blueprint(image)
    assert blueprint.getpixel((10, 30)) == PAPER
    assert blueprint.getpixel((31, 30)) == LINE


def test_a_balloon_has_an_envelope_with_a_stripe_and_a_basket() -> None:
    image = draw_balloon(Image.new("RGB", (128, 128), "black"), (200, 0, 0), (0, 0, 200), 64, 50, 30)
    assert image.getpixel((64, 50)) == (0, 0, 200)
    assert image.getpixel((40, 50)) == image.getpixel((88, 50)) == (200, 0, 0)
    assert image.getpixel((64, 100)) not in ((0, 0, 0), (0, 0, 200))
    assert image.getpixel((64, 110)) == (0, 0, 0)


def test_an_example_is_drawn_and_trained_from_the_command_line(tmp_path: Path) -> None:
    output = tmp_path / "out" / "mine.safetensors"
    assert main(["example", "balloon", "--output", str(output), "--steps", "1", "--images", "2"]) == 0
    metadata = read_metadata(output)
    assert (metadata["ss_output_name"], metadata["ss_steps"]) == ("mine", "1")
    assert json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))["activation text"] == "balloon"
    with Image.open(output.with_suffix(".png")) as preview:
        assert preview.size == (128, 128)
    assert main(["draw", "balloon", "--folder", str(tmp_path / "images"), "--images", "2"]) == 0
    assert sorted(path.name for path in (tmp_path / "images").iterdir())[:2] == ["00000.png", "00000.txt"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["train", "images"], 2, "launch.py train --folder"),
        (["draw", "ballon", "--folder", "x"], 1, "Did you mean 'balloon'"),
        (["example", "balloon", "--output", "mine.pt"], 1, "must be a .safetensors file"),
    ],
)
def test_what_cannot_be_is_said(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    assert said in capsys.readouterr().err
