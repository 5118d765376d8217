"""Operations on finished images: their order, their arguments, what they add, and Upscale itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.errors import CheckpointError, InvalidValueError, UnknownNameError
from modules.postprocessing.operation import Field, PostprocessedImage, ScriptPostprocessing
from modules.postprocessing.operations import Operations, infotext_of
from modules.postprocessing.upscale import UpscaleOperation
from modules.settings.values import Settings
from modules.upscalers.catalogue import UpscalerCatalogue
from modules.upscalers.upscalers import Upscalers
from tests.upscalers.models import save_esrgan


class Note(ScriptPostprocessing):
    """Writes down that it worked."""

    fields = (Field(name="much", label="Much", default=0.5, elem_id="much", low=0, high=1, step=0.1),)

    def __init__(self, name: str, order: int, notes: list[str]) -> None:
        self.name, self.order, self._notes = name, order, notes

    def process_firstpass(self, pp: PostprocessedImage, **args: Any) -> None:
        self._notes.append(f"first {self.name}")

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        self._notes.append(f"{self.name} {args['much']} {pp.image.width}")


class Doubles(ScriptPostprocessing):
    """Adds a wider image, and one that nobody works on any more."""

    name, order = "Duplicates", 50

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        pp.extra_images.append(Image.new("RGB", (20, 8)))
        pp.extra_images.append(pp.create_copy(pp.image, nametags=["kept"], disable_processing=True))


def upscale(folder: Path, **files: int) -> UpscaleOperation:
    for name, scale in files.items():
        save_esrgan(folder / "ESRGAN" / f"{name}.pth", scale)
    (folder / "ESRGAN").mkdir(exist_ok=True)
    return UpscaleOperation(
        Upscalers(UpscalerCatalogue({"ESRGAN": folder / "ESRGAN"}), lambda part: torch.device("cpu"))
    )


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def upscaled(operation: UpscaleOperation, image: Image.Image, settings: Settings | None = None, **args: Any) -> Any:
    pp = PostprocessedImage(image, settings or Settings())
    Operations([operation]).run(pp, {"Upscale": args})
    return pp


def test_the_order_is_their_own_unless_a_setting_says_otherwise() -> None:
    notes: list[str] = []
    operations = Operations([Note("b", 2, notes), Note("a", 1, notes), Note("c", 3, notes)])
    everything: dict[str, dict[str, Any]] = {"a": {}, "b": {"much": 1}, "c": {}}
    operations.run(PostprocessedImage(picture(8, 8)), everything)
    assert notes == ["first a", "first b", "first c", "a 0.5 8", "b 1.0 8", "c 0.5 8"]
    notes.clear()
    settings = Settings().changed(postprocessing_operation_order=["c", "b"], postprocessing_disable_in_extras=["b"])
    operations.run(PostprocessedImage(picture(8, 8), settings), everything)
    assert [note for note in notes if "first" not in note] == ["c 0.5 8", "a 0.5 8"]
    assert operations.names == ("a", "b", "c")


def test_added_images_go_on_through_later_operations_unless_they_are_kept_out() -> None:
    notes: list[str] = []
    operations = Operations([Note("late", 99, notes), Doubles()])
    found = operations.run(PostprocessedImage(picture(8, 8)), {"late": {}, "Duplicates": {}})
    assert [one.image.width for one in found] == [8, 20, 8]
    assert notes == ["first late", "late 0.5 8", "late 0.5 20"]
    suffixes: dict[str, int] = {}
    assert [one.get_suffix(suffixes) for one in found] == ["", "-2", "-kept"]


@pytest.mark.parametrize(
    ("args", "message"),
    [({"much": 2}, "Much is 2; allowed is at least 0, at most 1"), ({"much": "x"}, "Much is 'x'; allowed is a number")],
)
def test_values_that_are_not_allowed_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Operations([Note("a", 1, [])]).run(PostprocessedImage(picture(8, 8)), {"a": args})


def test_a_name_that_is_taken_and_none_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="already"):
        Operations([Note("a", 1, []), Note("a", 2, [])])
    with pytest.raises(InvalidValueError, match="no name"):
        Operations([Note("", 1, [])])


def test_infotexts_quote_what_needs_it() -> None:
    assert infotext_of({"A": 1, "B": "x, y", "C": None, "D": "D"}) == 'A: 1, B: "x, y", D'


def test_two_upscalers_are_blended_as_far_as_the_second_is_visible(tmp_path: Path) -> None:
    operation = upscale(tmp_path)
    image = picture(16, 24)
    found = upscaled(
        operation,
        image,
        upscaler_1_name="Lanczos",
        upscaler_2_name="Nearest",
        upscaler_2_visibility=0.25,
        upscale_by=2.0,
    )
    first, second = (image.resize((32, 48), how) for how in (Image.Resampling.LANCZOS, Image.Resampling.NEAREST))
    assert np.array_equal(np.asarray(found.image), np.asarray(Image.blend(first, second, 0.25)))
    assert found.info == {
        "Postprocess upscale by": 2.0,
        "Postprocess upscaler": "Lanczos",
        "Postprocess upscaler 2": "Nearest",
    }
    assert (found.shared.target_width, found.shared.target_height) == (32, 48)


def test_a_file_upscales_to_a_size_with_and_without_cropping(tmp_path: Path) -> None:
    operation = upscale(tmp_path, tiny=4)
    args: dict[str, Any] = {
        "upscaler_1_name": "TINY",
        "upscale_mode": 1,
        "upscale_to_width": 64,
        "upscale_to_height": 32,
    }
    cropped = upscaled(operation, picture(16, 16), **args)
    assert cropped.image.size == (64, 32)
    assert cropped.info["Postprocess crop to"] == "64x32"
    assert cropped.info["Postprocess upscaler"] == "tiny"
    assert upscaled(operation, picture(16, 16), **args, upscale_crop=False).image.size == (64, 64)


def test_the_longest_side_is_limited(tmp_path: Path) -> None:
    found = upscaled(upscale(tmp_path), picture(64, 32), upscaler_1_name="Lanczos", max_side_length=128)
    assert found.image.size == (128, 64)
    assert found.info["Max side length"] == 128


def test_what_was_upscaled_last_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = upscale(tmp_path, tiny=2)
    calls: list[str] = []
    enlarge: Callable[..., Image.Image] = Upscalers.enlarge

    def counted(self: Upscalers, image: Image.Image, name: str, *args: Any, **more: Any) -> Image.Image:
        calls.append(name)
        return enlarge(self, image, name, *args, **more)

    monkeypatch.setattr(Upscalers, "enlarge", counted)
    args: dict[str, Any] = {"upscaler_1_name": "tiny", "upscale_by": 2.0}
    first = upscaled(operation, picture(8, 8), **args)
    again = upscaled(operation, picture(8, 8), **args)
    assert np.array_equal(np.asarray(first.image), np.asarray(again.image)) and len(calls) == 1
    upscaled(operation, picture(8, 8, seed=1), **args)
    upscaled(operation, picture(8, 8), **{**args, "upscale_by": 3.0})
    assert len(calls) == 3
    off = Settings().changed(upscaling_max_images_in_cache=0)
    upscaled(operation, picture(8, 8, seed=2), off, **args)
    upscaled(operation, picture(8, 8, seed=2), off, **args)
    assert len(calls) == 5
    upscaled(operation, picture(8, 8, seed=3), **args)
    operation.image_changed()
    upscaled(operation, picture(8, 8, seed=3), **args)
    assert len(calls) == 7


def test_none_leaves_the_image_alone(tmp_path: Path) -> None:
    image = picture(10, 10)
    found = upscaled(upscale(tmp_path), image, upscaler_2_name="Lanczos", upscaler_2_visibility=1.0)
    assert found.image is image and found.info == {}
    assert upscaled(upscale(tmp_path), image, upscale_enabled=False, upscaler_1_name="Lanczos").image is image


def test_the_name_of_the_upscaler_ends_the_file_name_where_that_is_set(tmp_path: Path) -> None:
    settings = Settings().changed(use_upscaler_name_as_suffix=True)
    assert upscaled(upscale(tmp_path), picture(8, 8), settings, upscaler_1_name="Lanczos").get_suffix() == "-Lanczos"


def test_an_unknown_upscaler_names_those_there_are(tmp_path: Path) -> None:
    operation = upscale(tmp_path)
    with pytest.raises(UnknownNameError, match=r"Unknown upscaler 'tiny'.*Known: None, Lanczos, Nearest"):
        upscaled(operation, picture(8, 8), upscaler_1_name="tiny")
    save_esrgan(tmp_path / "ESRGAN" / "tiny.pth", 2)  # it came meanwhile
    assert upscaled(operation, picture(8, 8), upscaler_1_name="tiny", upscale_by=2.0).image.size == (16, 16)


def test_a_checkpoint_in_the_folder_of_upscalers_is_named(tmp_path: Path) -> None:
    operation = upscale(tmp_path)
    torch.save({"model.diffusion_model.input_blocks.0.0.weight": torch.zeros(4)}, tmp_path / "ESRGAN" / "sd.ckpt")
    with pytest.raises(CheckpointError, match=r"sd\.ckpt is no upscaler"):
        upscaled(operation, picture(8, 8), upscaler_1_name="sd")


def test_a_result_beyond_reason_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="gives 65536x65536 pixels"):
        upscaled(upscale(tmp_path), picture(1024, 1024), upscaler_1_name="Lanczos", upscale_by=64)
