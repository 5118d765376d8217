"""The extension that docs/extensions.md shows does what it says, and its tables name what there is."""

import base64
import re
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from modules.errors import CheckpointError, InvalidValueError
from modules.model_cards.cards import CardLibrary, card_json
from modules.postprocessing.operation import PostprocessedImage
from modules.processing.engine.adapters import Adapters
from modules.processing.engine.engine import Engine
from modules.processing.request.result import Result
from modules.scripts.callbacks import Moment
from modules.scripts.library import filled_args
from modules.scripts.program import Program
from modules.scripts.script import Script
from modules.settings.values import Settings
from tests.recordings import TINY
from tests.scripts.toys import extension, run, small_request

TEXT = (Path(__file__).parents[2] / "docs" / "extensions.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_examples_work(engine: Engine, tmp_path: Path) -> None:
    library = extension(tmp_path / "e", "\n".join(EXAMPLES))
    assert not library.faults
    engine.adapters = Adapters(types=library.adapters.types)
    args = filled_args(library.find("Twice"), [3])
    result = run(small_request(script="Twice", script_args=args), engine, tmp_path, library)
    assert not result.notices
    assert [image.seed for image in result.samples] == [5, 8]
    (operation,) = library.operations
    assert operation.checked({}) == {"enable": False, "much": 0.2}
    pp = PostprocessedImage(Image.new("RGB", (1, 1)))
    operation.process(pp, enable=True, much=0.2)
    assert pp.image.getpixel((0, 0)) == (51, 51, 51) and pp.info == {"Paler": 0.2}
    assert all("Stamp: mine" in image.infotext for image in result.samples)
    faded = run(small_request(prompt="a red cat <fade:0.9>"), engine, tmp_path, library)
    assert "Fade: 0.9" in faded.samples[0].infotext
    with pytest.raises(InvalidValueError, match=r"Write <fade:0\.9>"):
        run(small_request(prompt="a red cat <fade:x>"), engine, tmp_path, library)


def test_the_control_extension_of_the_example(engine: Engine, tmp_path: Path) -> None:
    (example,) = (text for text in EXAMPLES if "build_tint" in text)
    assert len(example.splitlines()) <= 100
    library = extension(tmp_path / "e", example)
    torch.manual_seed(2)
    width = engine.model(TINY.name).unet.config.block_out_channels[-1]
    file, other = tmp_path / "tint.safetensors", tmp_path / "other.safetensors"
    save_file({"net.weight": torch.randn(width, 3, 1, 1), "net.bias": torch.zeros(width)}, file)
    save_file({"net.bias": torch.zeros(width)}, other)
    buffer = BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "PNG")
    image = base64.b64encode(buffer.getvalue()).decode()

    def made(path: Path | str, image: str, weight: float) -> Result:
        wanted = small_request(alwayson_args={"Tint": (str(path), image, weight)})
        return run(wanted, engine, tmp_path, library)

    plain, tinted = made("", "", 1.0), made(file, image, 1.0)
    assert "Tint: 1.0" in tinted.samples[0].infotext and not tinted.notices
    assert tinted.samples[0].image.tobytes() != plain.samples[0].image.tobytes()
    assert made(file, image, 0.0).samples[0].image.tobytes() == plain.samples[0].image.tobytes()
    with pytest.raises(CheckpointError, match="no Tint model"):
        made(other, image, 1.0)
    with pytest.raises(InvalidValueError, match="image as base64"):
        made(file, "bm90aGluZw==", 1.0)


def test_the_page_of_the_example_lists_its_files(tmp_path: Path) -> None:
    (example,) = (text for text in EXAMPLES if "register_page" in text)
    library = extension(tmp_path / "e", example)
    (tmp_path / "Recipes").mkdir()
    (tmp_path / "Recipes" / "evening.txt").write_text("golden light, long shadows\n")
    program = Program(folders=lambda kind: (tmp_path / kind,))
    cards = CardLibrary(library.adapters.pages(program))
    (card,) = cards.cards("recipes", Settings())
    assert card_json(cards.page("recipes"), card, Settings())["prompt"] == "golden light, long shadows"


def test_every_hook_and_callback_is_in_the_tables() -> None:
    hooks = [name for name in vars(Script) if not name.startswith("_")]
    others = {"title", "show", "ui", "run", "is_alwayson", "filename", "built", "pasted", "program"}
    others |= {
        "component_callbacks",
        "is_on",
        "takes_part",
        "acting",
        "shown",
        "is_foreign",
        "failed",
        "ui_error",
        "stand_on",
    }  # our own
    assert [name for name in hooks if name not in others and f"`{name}" not in TEXT and f".{name}`" not in TEXT] == []
    assert [moment for moment in Moment if f"`on_{moment.value}`" not in TEXT] == []
