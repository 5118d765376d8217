"""Operations of the Extras tab below the form: what they do to images, record, add and refuse."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modules.errors import InvalidValueError, UnknownNameError
from modules.images.infotext import parse_infotext
from modules.postprocessing.operation import Field, PostprocessedImage, ScriptPostprocessing
from modules.postprocessing.operations import Operations
from modules.processing.engine.engine import Engine
from modules.scripts.form_operations import FormOperation, form_operations
from modules.scripts.library import ScriptLibrary, components_of, default_args, filled_args, pasted_args
from modules.settings.values import Settings
from tests.postprocessing.test_operations import upscale
from tests.scripts.toys import extension, image_request, run, small_request

UPSCALE: list[Any] = ["Upscale", True, 0, 2.0, 0, 512, 512, True, "Lanczos", "None", 0.0]
INNER = """
import modules.scripts as scripts
from PIL import Image

SIZES = []

class Inner(scripts.Script):
    def title(self):
        return "Inner"

    def show(self, is_img2img):
        return scripts.AlwaysVisible

    def postprocess_image(self, p, pp):
        SIZES.append(p.redrawing(pp.image, Image.new("L", pp.image.size, 255)).make().images[0].size)
"""


class Mirror(ScriptPostprocessing):
    """Adds the mirrored image, which is as wide as Upscale will make it."""

    name, order = "Mirror", 1500
    fields = (
        Field(name="enable", label="Mirror", default=False, elem_id="mirror", is_switch=True),
        Field(name="tone", label="Tone", default=1.0, elem_id="mirror_tone", low=0.0, high=1.0, infotext="Mirror tone"),
    )

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        if args["enable"]:
            assert pp.shared.target_width == pp.image.width
            pp.info["Mirror tone"] = args["tone"]
            pp.extra_images.append(pp.image.point(lambda value: 255 - value))


@pytest.fixture
def library(tmp_path: Path) -> ScriptLibrary:
    settings = Settings().changed(postprocessing_enable_in_main_ui=["Mirror", "Upscale"])
    library = ScriptLibrary()
    operations = Operations([upscale(tmp_path), Mirror()])
    library.form_operations = form_operations(operations, lambda: ["None", "Lanczos"], lambda: settings)
    return library


def found(library: ScriptLibrary, name: str) -> FormOperation:
    script = library.find_alwayson(name)
    assert isinstance(script, FormOperation)
    return script


def args_of(library: ScriptLibrary, **given: list[Any]) -> dict[str, tuple[Any, ...]]:
    return {name: filled_args(found(library, name), args) for name, args in given.items()}


def test_they_stand_in_the_order_of_the_settings(library: ScriptLibrary, tmp_path: Path) -> None:
    assert [script.title() for script in library.alwayson_of(True)] == ["Upscale", "Mirror"]
    operations = Operations([upscale(tmp_path), Mirror()])
    settings = Settings().changed(
        postprocessing_enable_in_main_ui=["Upscale", "Mirror"], postprocessing_operation_order=["Mirror"]
    )
    other = ScriptLibrary(form_operations=form_operations(operations, list, lambda: settings))
    assert [script.title() for script in other.alwayson_of(False)] == ["Mirror", "Upscale"]
    off = ScriptLibrary(form_operations=form_operations(operations, list, Settings))
    with pytest.raises(UnknownNameError, match="Upscale"):
        off.find_alwayson("Upscale")


def test_images_are_worked_on_before_they_are_saved(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    given = args_of(library, Mirror=[True, 0.5], Upscale=UPSCALE[1:])
    wanted = small_request(batch_size=2, alwayson_args=given, settings={"samples_save": True})
    result = run(replace(wanted, save_grid=False), engine, tmp_path, library)
    assert not result.notices
    images = result.samples
    assert [image.image.size for image in images] == [(128, 128)] * 4
    for first, added in zip(images[:2], images[2:], strict=True):
        assert added.image.tobytes() == first.image.point(lambda value: 255 - value).tobytes()
        assert added.seed == first.seed and added.path is not None and added.path != first.path
    parsed = parse_infotext(images[1].infotext)
    assert (parsed["Postprocess upscale by"], parsed["Postprocess upscaler"]) == ("2.0", "Lanczos")
    assert parsed["Mirror tone"] == "0.5" and (parsed["Size-1"], parsed["Size-2"]) == ("64", "64")


def test_a_mask_is_put_back_before(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    wanted = image_request((0, 0, 32, 64), alwayson_args=args_of(library, Upscale=UPSCALE[1:]))
    (image,) = run(wanted, engine, tmp_path, library).samples
    assert image.image.size == (128, 128) and image.image.getpixel((120, 64)) == (255, 0, 0)


def test_images_that_scripts_make_inside_are_left_alone(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    inner = extension(tmp_path / "e", INNER)
    inner.form_operations = library.form_operations
    wanted = small_request(steps=1, alwayson_args=args_of(library, Upscale=UPSCALE[1:]))
    result = run(wanted, engine, tmp_path, inner)
    assert not result.notices and result.samples[0].image.size == (128, 128)
    assert sys.modules["featherweight_scripts.toy.script"].SIZES == [(64, 64)]


def test_without_arguments_and_switched_off_nothing_happens(
    library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    plain = run(small_request(), engine, tmp_path, ScriptLibrary())
    off = {"Upscale": tuple(default_args(found(library, "Upscale"))), "Mirror": (False, 1.0)}
    for given in ({}, off):
        result = run(small_request(alwayson_args=given), engine, tmp_path, library)
        assert result.samples[0].infotext == plain.samples[0].infotext and len(result.images) == 1


def test_a_wrong_argument_ends_the_job_before_the_first_step(
    library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    for title, args, sentence in (
        ("Upscale", [True, 0, 2.0, 0, 512, 512, True, "Nowhere"], "Nowhere"),
        ("Mirror", [True, 3.0], "Tone is 3.0; allowed is at least 0, at most 1"),
    ):
        wanted = small_request(alwayson_args=args_of(library, **{title: args}))
        with pytest.raises(InvalidValueError if title == "Mirror" else UnknownNameError, match=sentence):
            run(wanted, engine, tmp_path, library)


def test_what_images_record_is_pasted(library: ScriptLibrary) -> None:
    script = found(library, "Upscale")
    labels = [component.label for component in components_of(script)]
    assert labels[:2] == ["Enable Upscale", "Mode"]
    recorded = {"Postprocess upscale to": "256x128", "Postprocess upscaler": "Lanczos"}
    pasted = pasted_args(script, recorded)
    assert pasted is not None
    values = dict(zip(labels, pasted, strict=True))
    assert values["Enable Upscale"] is True and values["Mode"] == 1
    assert (values["Width"], values["Height"], values["Upscaler 1"]) == (256, 128, "Lanczos")
    assert pasted_args(script, {"Steps": 20}) is None
    mirrored = pasted_args(found(library, "Mirror"), {"Mirror tone": 0.25})
    assert mirrored == (True, 0.25)
