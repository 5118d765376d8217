"""The detailer: what it finds and paints anew, in which order and with which prompts, and what it refuses."""

import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageChops

from compat.foreign import Foreign
from lib_detailer.detectors import Detectors
from modules.detection.detection import Detection
from modules.errors import CheckpointError, FeatherweightError, InvalidValueError
from modules.images.infotext import parse_infotext
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.result import GeneratedImage, Result
from modules.scripts.library import ScriptLibrary, filled_args, pasted_args
from modules.scripts.program import Program
from modules.scripts.running import run_with_scripts
from tests.faces.drawing import face_drawing
from tests.recordings import CONFIGS, TINY, cpu_machine
from tests.scripts.toys import image_request, run, small_hires, small_request

BUILT_IN = Path(__file__).parent.parent.parent / "extensions-builtin"
BOXES = ((40.0, 4.0, 60.0, 20.0), (4.0, 4.0, 20.0, 20.0), (8.0, 36.0, 40.0, 60.0))
"""What the detector of these tests finds, in its order."""
PROBE = """
import modules.scripts as scripts

RUNS = []

class Probe(scripts.Script):
    def title(self):
        return "Probe"

    def show(self, is_img2img):
        return scripts.AlwaysVisible

    def process(self, p):
        RUNS.append(p)
"""


def find_boxes(image: Image.Image, name: str, min_score: float) -> list[Detection]:
    return [Detection(box, score, "face") for box, score in zip(BOXES, (0.9, 0.8, 0.7), strict=True)]


@pytest.fixture
def library(tmp_path: Path, engine: Engine) -> ScriptLibrary:
    """The detailer, with another script that notes every job, and a detector that finds `BOXES`."""
    scripts = tmp_path / "extensions" / "probe" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "probe.py").write_text(PROBE)
    detectors = Detectors(engine.faces.find, tmp_path / "adetailer")
    program = Program(detectors=lambda: list(detectors.names), detector=detectors.check, detect=find_boxes)
    found = ScriptLibrary.load([tmp_path / "extensions"], program=program, foreign=Foreign())
    detailer = ScriptLibrary.load([BUILT_IN], [path.name for path in BUILT_IN.iterdir() if path.name != "detailer"])
    assert not found.faults and not detailer.faults
    for script in detailer.scripts:
        script.program = program
    found.scripts += detailer.scripts
    return found


def runs(library: ScriptLibrary) -> list[Any]:
    """Every job that the probe has seen: first the outer one, then what the detailer painted."""
    return list(sys.modules["featherweight_scripts.probe.probe"].RUNS)


def detailed(
    wanted: Any, library: ScriptLibrary, engine: Engine, folder: Path, *args: Any, **unit: Any
) -> tuple[Result, list[Any]]:
    """The result, and the jobs of the detailer."""
    args = args or (True, False, {"ad_model": "face_mtcnn", "ad_denoising_strength": 1.0, "ad_mask_blur": 0, **unit})
    script = library.find_alwayson("adetailer", hasattr(wanted.start, "images"))
    request = replace(wanted, alwayson_args={script.title(): filled_args(script, list(args))})
    result = run(request, engine, folder, library)
    assert result.notices == ()
    return result, runs(library)[1:]


def where_changed(first: Image.Image, second: Image.Image) -> tuple[int, int, int, int] | None:
    return ImageChops.difference(first, second).getbbox()


def test_a_face_is_found_and_painted_anew_and_nothing_else_changes(
    library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    image = Image.new("RGB", (224, 128), (120, 150, 180))
    image.paste(face_drawing(128), (0, 0))
    (face,) = engine.faces.find(image)
    script = library.find_alwayson("ADetailer", True)
    detectors = Detectors(engine.faces.find, tmp_path)
    script.program = replace(script.program, detect=detectors.find)
    args = (True, True, {"ad_model": "mediapipe_face_full", "ad_mask_blur": 0, "ad_denoising_strength": 1})
    result, (job,) = detailed(image_request(image=image), library, engine, tmp_path, *args)
    (made,) = result.samples
    assert made.image.size == image.size and (job.width, job.height, job.steps) == (64, 64, 2)
    changed = where_changed(image, made.image)
    assert changed is not None
    assert all(abs(edge - border) <= 4 for edge, border in zip(changed, face.box, strict=True)), (changed, face.box)
    fields = parse_infotext(made.infotext)
    assert fields["ADetailer model"] == "mediapipe_face_full" and fields["ADetailer skip img2img"] == "True"
    assert (fields["Steps"], fields["ADetailer steps"]) == ("1", "2")


def test_the_mask_of_the_eyes_leaves_the_rest_of_the_face(engine: Engine, tmp_path: Path) -> None:
    (eyes,) = Detectors(engine.faces.find, tmp_path).find(face_drawing(128), "mediapipe_face_mesh_eyes_only")
    mask = np.asarray(eyes.mask((128, 128)))
    assert mask[56, 50] == 255 and mask[56, 78] == 255 and mask[56, 64] == 0 and mask[90, 64] == 0


def test_txt2img_paints_what_is_found_with_its_own_seeds_and_saves_one_image(
    library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    wanted = small_request(settings={"samples_save": True, "save_init_img": True})
    plain = run(wanted, engine, tmp_path / "plain", library)
    result, jobs = detailed(wanted, library, engine, tmp_path / "out", ad_use_steps=True, ad_steps=1)
    assert [(job.seed, job.steps, job.prompt) for job in jobs[1:]] == [
        (5, 1, "a red cat"),
        (6, 1, "a red cat"),
        (7, 1, "a red cat"),
    ]
    assert len(list((tmp_path / "out").rglob("*.png"))) == 1 and len(result.images) == 1
    apart = ImageChops.difference(plain.images[0].image, result.images[0].image).convert("L")
    untouched = Image.new("L", (64, 64), 255)
    for left, top, right, bottom in BOXES:
        untouched.paste(0, (int(left) - 3, int(top) - 3, int(right) + 4, int(bottom) + 4))
        assert apart.crop((int(left), int(top), int(right), int(bottom))).getbbox() is not None
    assert ImageChops.multiply(apart, untouched).getbbox() is None
    text = result.images[0].infotext
    assert text.startswith(plain.images[0].infotext.split("Steps")[0]) and "Denoising strength" not in text.replace(
        "ADetailer d", ""
    )


def test_batches_with_adapters_and_a_second_pass_go_on_undisturbed(
    library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    many = {"batch_size": 2, "batch_count": 2, "steps": 1, "hires": small_hires()}
    wanted = small_request(prompt="a cat <lora:tiny-dora:1>", settings={"return_grid": False}, **many)
    plain = run(wanted, engine, tmp_path, library)
    painted, _ = detailed(
        wanted, library, engine, tmp_path, ad_prompt="a dog", ad_mask_k=1, ad_inpaint_only_masked=False
    )
    assert len(plain.samples) == len(painted.samples) == 4
    for before, after in zip(plain.samples, painted.samples, strict=True):
        changed = where_changed(before.image, after.image)
        assert changed is not None and changed[0] >= 4 and changed[1] >= 32
        assert after.image.size == (96, 96) and "Lora hashes" in after.infotext


@pytest.mark.parametrize(
    ("settings", "unit", "wanted"),
    [
        ({}, {"ad_prompt": "one[SEP][SKIP][SEP]not [PROMPT]"}, ["one", "not a red cat"]),
        ({}, {"ad_prompt": "one [SEP] two"}, ["one", "two", "two"]),
        ({}, {"ad_prompt": "one[SEP]", "ad_mask_merge_invert": "Merge"}, ["one"]),
        ({"ad_bbox_sortby": "Position (left to right)"}, {"ad_prompt": "[SKIP][SEP]second[SEP][SKIP]"}, ["second"]),
    ],
)
def test_prompts_of_what_is_found(
    settings: Mapping[str, Any],
    unit: dict[str, Any],
    wanted: list[str],
    library: ScriptLibrary,
    engine: Engine,
    tmp_path: Path,
) -> None:
    _, jobs = detailed(small_request(steps=1, settings=settings), library, engine, tmp_path, **unit)
    assert [job.prompt for job in jobs] == wanted


def test_prompts_of_units_know_all_that_prompts_know(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    """Choices, edits, weights, BREAK, AND and LoRAs; an image's own LoRA takes part where its prompt does."""
    others = [path.name for path in BUILT_IN.iterdir() if path.name != "dynamic-prompts"]
    library.scripts += ScriptLibrary.load([BUILT_IN], others).scripts
    unit = {"ad_mask_k": 1, "ad_use_steps": True, "ad_steps": 1}

    def painted(prompt: str, negative: str = "", own: str = "a cat") -> Any:
        wanted = small_request(prompt=own, steps=1)
        result, _ = detailed(wanted, library, engine, tmp_path, ad_prompt=prompt, ad_negative_prompt=negative, **unit)
        return np.asarray(result.samples[0].image.crop((8, 36, 40, 60))).astype(int)

    dog = painted("a dog")
    for same in ("{a dog|a dog}", "[a cat:a dog:0]", "(a dog:1.0)", "a dog AND a cat:0", "  a dog\n"):
        assert abs(painted(same) - dog).max() <= 1, same
    for other in ("a dog <lora:tiny-dora:1>", "a dog BREAK tree", "(a dog:1.5)"):
        assert abs(painted(other) - dog).max() > 1, other
    assert abs(painted("a dog", "a tree") - dog).max() > 1
    own = painted("")
    assert (painted("a cat") == own).all() and (painted("[PROMPT]", "[PROMPT]") == own).all()
    assert abs(painted("[PROMPT]", own="a cat <lora:tiny-dora:1>") - own).max() > 1
    with pytest.raises(AssertionError, match="no-such-file"):  # `detailed` expects no notices
        painted("a dog <lora:no-such-file:1>")


def unit_of(library: ScriptLibrary, **values: Any) -> dict[str, Any]:
    return dict(module()._unit(0, values))


def module() -> Any:
    return sys.modules["featherweight_scripts.detailer.detailer"]


@pytest.mark.parametrize(
    ("order", "values", "places"),
    [
        ("None", {}, [0, 1, 2]),
        ("Position (left to right)", {}, [1, 2, 0]),
        ("Position (center to edge)", {}, [2, 0, 1]),
        ("Area (large to small)", {}, [2, 0, 1]),
        ("None", {"ad_mask_k_largest": 1}, [2]),
        ("None", {"ad_mask_k": "2", "ad_mask_filter_method": "Confidence"}, [0, 1]),
        ("None", {"ad_mask_min_ratio": 0.07}, [0, 2]),
        ("None", {"ad_mask_max_ratio": 0.07}, [1]),
        ("None", {"ad_model_classes": "hand, Face"}, [0, 1, 2]),
        ("None", {"ad_model_classes": "hand"}, []),
    ],
)
def test_what_is_taken_and_in_which_order(
    order: str, values: dict[str, Any], places: list[int], library: ScriptLibrary
) -> None:
    unit = unit_of(library, **values)
    found = find_boxes(Image.new("RGB", (64, 64)), "", 0)
    assert [found.index(item) for item in module().chosen(found, unit, (64, 64), order)] == places


@pytest.mark.parametrize(
    ("values", "boxes"),
    [
        ({"ad_dilate_erode": 0}, [(10, 20, 31, 41)]),
        ({"ad_dilate_erode": 4}, [(8, 18, 32, 42)]),
        ({"ad_dilate_erode": -5}, [(12, 22, 29, 39)]),
        ({"ad_dilate_erode": -40}, []),
        ({"ad_dilate_erode": 0, "ad_x_offset": 5, "ad_y_offset": 8}, [(15, 12, 36, 33)]),
    ],
)
def test_masks_are_moved_and_grown(
    values: dict[str, Any], boxes: list[tuple[int, ...]], library: ScriptLibrary
) -> None:
    found = [Detection((10, 20, 30, 40), 0.9)]
    masks = module().masks_of(found, unit_of(library, **values), (64, 64))
    near = [mask.getbbox() for mask in masks]
    assert len(near) == len(boxes)
    for mine, box in zip(near, boxes, strict=True):
        assert all(abs(a - b) <= 1 for a, b in zip(mine, box, strict=True)), (mine, box)


def test_masks_are_merged_and_inverted(library: ScriptLibrary) -> None:
    found = find_boxes(Image.new("RGB", (64, 64)), "", 0)
    (merged,) = module().masks_of(found, unit_of(library, ad_mask_merge_invert="merge"), (64, 64))
    (inverted,) = module().masks_of(found, unit_of(library, ad_mask_merge_invert="Merge and Invert"), (64, 64))
    assert merged.getpixel((10, 10)) == merged.getpixel((50, 10)) == 255 and merged.getpixel((30, 28)) == 0
    assert ImageChops.invert(merged).tobytes() == inverted.tobytes()


def test_units_record_themselves_and_are_pasted(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    first = {
        "ad_model": "face_mtcnn",
        "ad_prompt": "a, face",
        "ad_use_cfg_scale": True,
        "ad_cfg_scale": 3,
        "ad_mask_k": 1,
    }
    second = {"ad_model": "eyes_mtcnn", "ad_dilate_erode": -2, "ad_inpaint_only_masked": False, "ad_tap_enable": True}
    result, jobs = detailed(small_request(steps=1), library, engine, tmp_path, True, first, second)
    assert len(jobs) == 4 and jobs[0].cfg_scale == 3 and not jobs[1].inpaint_full_res
    fields = parse_infotext(result.images[0].infotext)
    assert fields["ADetailer prompt"] == "a, face" and fields["ADetailer CFG scale"] == "3.0"
    assert fields["ADetailer dilate erode 2nd"] == "-2" and "ADetailer steps" not in fields
    args = pasted_args(library.find_alwayson("ADetailer"), fields)
    units, skips = module().Detailer()._wanted(None, args)
    assert [unit for _, unit in units] == [unit_of(library, **first), unit_of(library, **second)] and not skips
    assert pasted_args(library.find_alwayson("ADetailer"), {"Steps": "2"}) is None


@pytest.fixture
def two_checkpoints(tmp_path: Path) -> Iterator[Engine]:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("first", "second"):
        shutil.copy(TINY, folder / f"{name}.safetensors")
        shutil.copy(TINY.with_suffix(".yaml"), folder / f"{name}.yaml")
    engine = Engine(CheckpointCatalogue([folder], HashCache(tmp_path / "hashes.json")), CONFIGS, cpu_machine)
    yield engine
    engine.unload()


def test_a_unit_has_its_own_checkpoint_and_the_job_goes_on_with_its_own(
    library: ScriptLibrary, two_checkpoints: Engine, tmp_path: Path
) -> None:
    engine = two_checkpoints
    wanted = small_request(checkpoint="first", steps=1, batch_count=2)
    loaded: list[str] = []
    engine.on_loaded(lambda model: loaded.append(model.info.model_name))
    plain = run(wanted, engine, tmp_path, library)
    unit = {"ad_use_checkpoint": True, "ad_checkpoint": "second", "ad_mask_k": 1}
    painted, _ = detailed(wanted, library, engine, tmp_path, **unit)
    assert loaded == ["first", "second", "first", "second", "first"]
    assert engine.leases == [] and painted.info.checkpoint_name == "first"
    for before, after in zip(plain.samples, painted.samples, strict=True):
        changed = where_changed(before.image, after.image)
        assert changed is not None and changed[0] >= 4 and changed[1] >= 32  # only the largest box
        assert "Model: first" in after.infotext and "ADetailer checkpoint: second" in after.infotext


def test_a_stopped_image_is_left_as_it_is(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    from modules.errors import Interrupted

    shown: list[GeneratedImage] = []

    class Stops(Silent):
        """Stops as soon as the outer image is sampled: at the detailer's first look."""

        def check(self) -> None:
            if len(runs(library)) > 1:
                raise Interrupted("stopped")

        def finished_image(self, image: GeneratedImage) -> None:
            shown.append(image)

    plain = run(small_request(), engine, tmp_path, library)
    runs_before = sys.modules["featherweight_scripts.probe.probe"].RUNS
    runs_before.clear()
    script = library.find_alwayson("ADetailer")
    args = filled_args(script, [True, False, {"ad_model": "face_mtcnn"}])
    request = replace(small_request(), alwayson_args={script.title(): args})
    result = run_with_scripts(request, engine, Output(tmp_path), Stops(), library)
    assert where_changed(plain.images[0].image, result.images[0].image) is None
    assert len(shown) == 1 and len(runs(library)) == 2


@pytest.mark.parametrize(
    ("unit", "sentence"),
    [
        ({"ad_model": "hand_yolov8n.pt"}, "unit 1: The detector hand_yolov8n.pt is not there: put hand_yolov8n.pt"),
        ({"ad_model": "magic"}, "unit 1: .*magic.*face_mtcnn"),
        ({"ad_denoising_strength": 1.5}, "ad_denoising_strength is 1.5; allowed is 0 to 1"),
        ({"ad_steps": "many"}, "ad_steps is 'many'; it takes a number"),
        ({"ad_mask_blur": 1.5}, "ad_mask_blur is 1.5; it takes a whole number"),
        ({"ad_use_steps": "perhaps"}, "ad_use_steps is 'perhaps'; it takes true or false"),
        ({"ad_mask_merge_invert": "Mix"}, "'Mix'; it takes one of: None, Merge, Merge and Invert"),
        ({"ad_use_sampler": True, "ad_sampler": "Guess"}, "unit 1: .*Guess"),
        ({"ad_controlnet_model": "control_v11p"}, "ControlNet is not available here"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_made(
    unit: dict[str, Any], sentence: str, library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    with pytest.raises(FeatherweightError, match=sentence):
        detailed(small_request(), library, engine, tmp_path, True, {"ad_model": "face_mtcnn", **unit})


def test_axes_change_the_first_unit(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    from modules.scripts.axes import AXES
    from modules.scripts.job import Job

    axis = AXES.get("[ADetailer] Denoising strength 1st")
    p: Job = Job(small_request(), lambda job: None)  # type: ignore[arg-type, return-value]
    axis.apply(p, *(lambda values: (values[1], values))(axis.values("0.2, 0.6")))
    ((_, unit),), _ = module().Detailer()._wanted(p.replace(), (True, False, {"ad_model": "face_mtcnn"}))
    assert unit["ad_denoising_strength"] == 0.6
    with pytest.raises(InvalidValueError, match="allowed is 0 to 1"):
        axis.values("3")


class _Session:
    """A file as onnxruntime runs it: gives the outputs that it was made with."""

    def __init__(self, outputs: list[Any], shape: list[Any]) -> None:
        self.outputs, self.shape = outputs, shape
        self.seen: list[Any] = []

    def get_inputs(self) -> list[Any]:
        return [type("Entry", (), {"name": "images", "shape": self.shape})]

    def get_modelmeta(self) -> Any:
        return type("Meta", (), {"custom_metadata_map": {"names": "{0: 'cat', 1: 'hand'}"}})

    def run(self, names: Any, inputs: Mapping[str, Any]) -> list[Any]:
        self.seen.append(inputs["images"])
        return self.outputs


def yolo(monkeypatch: pytest.MonkeyPatch, folder: Path, outputs: list[Any], shape: Any = (1, 3, 64, 64)) -> _Session:
    from lib_detailer import yolo as module_of_files

    session = _Session(outputs, list(shape))
    monkeypatch.setattr(module_of_files, "_session", lambda path: session)
    folder.mkdir(exist_ok=True)
    (folder / "hand.onnx").write_bytes(b"")
    return session


def test_a_file_finds_boxes_in_the_images_own_pixels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Middle, size and two scores of three boxes; the second is nearly the first, the third too faint.
    rows = np.array([[32, 32, 16, 8, 0.1, 0.9], [33, 32, 16, 8, 0.1, 0.8], [20, 30, 8, 8, 0.2, 0.1]]).T[None]
    session = yolo(monkeypatch, tmp_path, [rows])
    image = Image.new("RGB", (128, 64), "red")  # shown in half its size, 16 pixels from the top
    (found,) = Detectors(lambda *_: [], tmp_path).find(image, "hand.pt", 0.3)
    assert found.box == (48.0, 24.0, 80.0, 40.0) and found.label == "hand" and round(found.score, 3) == 0.9
    assert session.seen[0].shape == (1, 3, 64, 64) and session.seen[0][0, :, 32, 0].tolist() == [1, 0, 0]
    assert session.seen[0][0, 0, 8, 8] == pytest.approx(114 / 255)


def test_a_file_with_outlines_masks_the_thing_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maps = np.full((1, 32, 16, 16), -1.0)
    maps[0, 0, :, 8:] = 1.0  # the right half
    row = np.array([32, 32, 32, 32, 0.9, 0.0, 5.0, *[0.0] * 31])[None, :, None]
    yolo(monkeypatch, tmp_path, [row, maps])
    (found,) = Detectors(lambda *_: [], tmp_path).find(Image.new("RGB", (64, 64)), "hand.onnx", 0.3)
    mask = np.asarray(found.mask((64, 64)))
    assert mask[32, 40] == 255 and mask[32, 20] == 0 and mask[32, 60] == 0


@pytest.mark.parametrize(
    ("outputs", "shape", "sentence"),
    [
        ([np.zeros((1, 10))], (1, 3, 64, 64), r"its output has the shape \[1, 10\]"),
        ([], (1, 10), r"its input has the shape \[1, 10\]"),
    ],
)
def test_a_file_of_another_kind_is_named(
    outputs: list[Any], shape: Any, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    yolo(monkeypatch, tmp_path, outputs, shape)
    with pytest.raises(CheckpointError, match=f"hand.onnx is no detector that can be used: {sentence}"):
        Detectors(lambda *_: [], tmp_path).find(Image.new("RGB", (64, 64)), "hand.onnx", 0.3)


def test_without_onnxruntime_a_file_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hand.onnx").write_bytes(b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install onnxruntime"):
        Detectors(lambda *_: [], tmp_path).find(Image.new("RGB", (64, 64)), "hand.onnx", 0.3)
