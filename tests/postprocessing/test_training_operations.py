"""The operations for training data: an extension of ours, through the API of all extensions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modules.faces.face import Face
from modules.postprocessing.operation import PostprocessedImage, SharedInfo
from modules.postprocessing.operations import Operations
from modules.scripts.built_in import BUILT_IN
from modules.scripts.library import ScriptLibrary
from modules.scripts.program import Program
from modules.settings.values import Settings

NAMES = ["Split oversized images", "Auto focal point crop", "Auto-sized crop", "Create flipped copies", "Caption"]


def face(left: float, top: float, side: float) -> Face:
    return Face((left, top, left + side, top + side), 1.0, np.zeros((5, 2)))


@pytest.fixture
def operations() -> Operations:
    program = Program(
        caption=lambda image, kind, settings: f"{kind} {image.width}",
        find_faces=lambda image: [face(160, 20, 20)] if image.width == 200 else [],
    )
    library = ScriptLibrary.load([BUILT_IN], ("Lora", "xyz-grid"), program)
    assert library.faults == []
    return Operations(library.operations)


def run(
    operations: Operations, name: str, image: Image.Image, target: tuple[int, int] | None = None, **args: Any
) -> list[PostprocessedImage]:
    pp = PostprocessedImage(image, Settings(), shared=SharedInfo(*target) if target else SharedInfo())
    return operations.run(pp, {name: {"enable": True, **args}})


def gradient(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.tile(np.linspace(0, 255, width).astype(np.uint8), (height, 1))).convert("RGB")


def test_they_are_there_in_their_order_and_off_by_default(operations: Operations) -> None:
    assert [name for name in operations.names if name in NAMES] == NAMES
    image = gradient(64, 16)
    pp = PostprocessedImage(image, Settings(), shared=SharedInfo(16, 16))
    assert operations.run(pp, {name: {} for name in NAMES}) == [pp]
    assert pp.image is image and pp.info == {} and pp.caption is None


def test_long_images_are_split_into_overlapping_ones(operations: Operations) -> None:
    found = run(operations, NAMES[0], gradient(640, 160), (80, 80))
    assert [one.image.size for one in found] == [(80, 80)] * 5
    starts = [float(np.asarray(one.image)[0, 0, 0]) for one in found]
    assert starts == sorted(starts) and starts[0] < 5
    assert float(np.asarray(found[-1].image)[0, -1, 0]) > 250
    tall = run(operations, NAMES[0], gradient(640, 160).rotate(90, expand=True), (80, 80))
    assert len(tall) == 5
    assert len(run(operations, NAMES[0], gradient(100, 80), (80, 80))) == 1
    assert len(run(operations, NAMES[0], gradient(640, 160))) == 1, "no size is wanted"


def test_the_crop_follows_faces_and_edges(operations: Operations) -> None:
    image = Image.new("RGB", (200, 100))
    image.paste("white", (10, 40, 30, 60))
    (found,) = run(operations, NAMES[1], image, (50, 50), entropy_weight=0.0, edges_weight=0.0)
    assert found.image.size == (50, 50) and np.asarray(found.image).max() < 40, "the face is on the right"
    (found,) = run(operations, NAMES[1], image, (50, 50), face_weight=0.0)
    assert np.asarray(found.image).max() > 200, "the edges are on the left"
    _, debug = run(operations, NAMES[1], image, (50, 50), debug=True)
    assert debug.get_suffix() == "-focal-crop-debug" and debug.image.size == (200, 100)
    plain = run(operations, NAMES[1], Image.new("RGB", (100, 50), "red"), (20, 20))
    assert plain[0].image.size == (20, 20)


@pytest.mark.parametrize(
    ("args", "size"),
    [({}, (768, 512)), ({"objective": "Minimize error"}, (768, 512)), ({"maxarea": 64 * 64}, None)],
)
def test_the_best_size_is_chosen(operations: Operations, args: dict[str, Any], size: tuple[int, int] | None) -> None:
    (found,) = run(operations, NAMES[2], gradient(900, 600), **args)
    assert found.image.size == (size or (900, 600))
    if size is None:
        assert found.info == {"Auto-sized crop": "no size fits"}


def test_flipped_copies_are_added(operations: Operations) -> None:
    image = Image.new("RGB", (2, 2))
    image.putpixel((0, 0), (255, 255, 255))
    found = run(operations, NAMES[3], image, vertical=True, both=True)
    places = [tuple(np.argwhere(np.asarray(one.image)[..., 0] > 0)[0]) for one in found]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(run(operations, NAMES[3], image)) == 2


def test_captions_come_of_each_image_and_its_copies(operations: Operations) -> None:
    pp = PostprocessedImage(Image.new("RGB", (7, 7)), Settings())
    arguments = {NAMES[3]: {"enable": True}, NAMES[4]: {"enable": True, "deepbooru": True}}
    found = operations.run(pp, arguments)
    assert [one.caption for one in found] == ["deepbooru 7, clip 7"] * 2


def test_a_faulty_operation_is_left_out_by_name(tmp_path: Path) -> None:
    scripts = tmp_path / "mine" / "scripts"
    scripts.mkdir(parents=True)
    text = "from modules.postprocessing.operation import ScriptPostprocessing\nclass Mine(ScriptPostprocessing):\n"
    (scripts / "a.py").write_text(f"{text}    order = 1\n")
    (scripts / "b.py").write_text(f"{text}    name = 'Mine'\n")
    library = ScriptLibrary.load([tmp_path])
    assert [one.name for one in library.operations] == ["Mine"]
    assert library.faults == ["mine/a.py: InvalidValueError: Mine sets no name."]
