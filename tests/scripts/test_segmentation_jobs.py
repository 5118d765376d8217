"""Masks by words in jobs: `<segment:word>` of img2img and of the detailer, and masks over the API."""

import base64
import sys
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image, ImageChops

from compat.foreign import Foreign
from modules.detection.detection import Detection
from modules.errors import CheckpointError, InvalidValueError
from modules.images.infotext import parse_infotext
from modules.jobs.work.calls import call
from modules.processing.engine.engine import Engine
from modules.processing.request.result import Result
from modules.scripts.library import ScriptLibrary, filled_args
from modules.scripts.program import Program
from tests.detection import segmentation_files as files
from tests.extensions import built_in
from tests.fakes import fake_services, whole_api
from tests.scripts.toys import image_request, run, small_request

BUILT_IN = Path(__file__).parents[2] / "extensions-builtin"
USED = ("segmentation", "detailer")
BOX = (16, 24, 40, 56)
SCORE = 0.6


def found_by(image: Image.Image, words: str, min_score: float) -> list[Detection]:
    """A hat in `BOX`, whatever the image, and nothing else."""
    if words != "hat" or min_score > SCORE:
        return []
    outline = Image.new("L", image.size)
    outline.paste(255, BOX)
    return [Detection(tuple(map(float, BOX)), SCORE, words, outline)]  # type: ignore[arg-type]


@pytest.fixture
def library(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptLibrary:
    """Segmentation and the detailer, where words find what `found_by` says."""
    built_in()
    segmenter = sys.modules["lib_segmentation.segmenter"]

    def by_words(self: Any, image: Any, words: str, min_score: float | None = None, model: str = "") -> Any:
        return found_by(image, words, 0.4 if min_score is None else min_score)

    monkeypatch.setattr(segmenter.Segmenter, "by_words", by_words)
    monkeypatch.setattr(segmenter.Segmenter, "check", lambda self, asked: None)
    return loaded(engine, tmp_path)


def loaded(engine: Engine, folder: Path) -> ScriptLibrary:
    """The two extensions in a program whose models lie in this folder."""
    program = Program(
        folders=lambda name: (folder / name,),
        compute_alone=engine.compute_alone,
        find_faces=engine.faces.find,
        detector=lambda name: found.detectors().check(name),
        detect=lambda image, name, score: found.detectors().find(image, name, score),
    )
    off = [path.name for path in BUILT_IN.iterdir() if path.name not in USED]
    found = ScriptLibrary.load([BUILT_IN], off, program=program, foreign=Foreign())
    assert found.faults == []
    engine.adapters.add_types(kind for kind in found.adapters.types if kind.name == "segment")
    return found


def changed_area(result: Result, color: str = "red") -> Any:
    """The box of what differs from an image of one color."""
    (made,) = result.samples
    return ImageChops.difference(made.image, Image.new("RGB", made.image.size, color)).getbbox()


def test_a_tag_masks_what_it_names_in_img2img(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    result = run(image_request(prompt="a <segment:hat> blue hat"), engine, tmp_path, library)
    assert result.notices == ()
    assert parse_infotext(result.samples[0].infotext)["Prompt"] == "a <segment:hat> blue hat"
    left, top, right, bottom = changed_area(result)
    assert left >= BOX[0] - 12 and top >= BOX[1] - 12 and right <= BOX[2] + 12 and bottom <= BOX[3] + 12


def test_a_tag_inverts_and_adds_to_what_is_painted(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    (script,) = [one for one in library.alwayson if one.title() == "Segmentation"]
    masks = []
    for prompt, painted in (("<segment:hat:invert=1>", None), ("<segment:hat:grow=2>", (0, 0, 8, 8))):
        job: Any = type("Image job", (), {})()
        job.prompt, job.init_images, job.image_mask = prompt, [Image.new("RGB", (64, 64))], None
        if painted:
            job.image_mask = Image.new("L", (64, 64))
            job.image_mask.paste(255, painted)
        script.before_process(job)
        masks.append(np.asarray(job.image_mask))
    assert masks[0][0, 0] == 255 and masks[0][30, 20] == 0
    assert masks[1][0, 0] == 255 and masks[1][22, 14] == 255 and masks[1][21, 13] == 0


def test_a_word_that_names_nothing_ends_the_job(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="Nothing in the image is found for 'zebra', and nothing is masked"):
        run(image_request(prompt="<segment:zebra> x"), engine, tmp_path, library)
    with pytest.raises(InvalidValueError, match=r"use it in img2img, or in the prompt of ADetailer"):
        run(small_request(prompt="<segment:hat> x"), engine, tmp_path, library)


def detailed(library: ScriptLibrary, engine: Engine, folder: Path, **unit: Any) -> Result:
    script = library.find_alwayson("adetailer", False)
    unit = {"ad_model": "face_mtcnn", "ad_denoising_strength": 1.0, "ad_mask_blur": 0, "ad_dilate_erode": 0, **unit}
    args = filled_args(script, [True, False, unit])
    return run(small_request(alwayson_args={script.title(): args}), engine, folder, library)


def test_the_detailer_paints_what_a_word_names(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    plain = run(small_request(), engine, tmp_path, library).samples[0].image
    result = detailed(library, engine, tmp_path, ad_prompt="<segment:hat> a blue hat")
    (made,) = result.samples
    assert ImageChops.difference(made.image, plain).getbbox() == BOX and result.notices == ()
    fields = parse_infotext(made.infotext)
    assert (fields["ADetailer model"], fields["ADetailer prompt"]) == ("segment:hat", "a blue hat")
    pasted = detailed(library, engine, tmp_path, ad_model="segment:hat", ad_prompt="a blue hat")
    assert pasted.samples[0].image.tobytes() == made.image.tobytes()


def test_the_detailer_says_what_a_word_does_not_find(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    result = detailed(library, engine, tmp_path, ad_prompt="<segment:zebra> stripes")
    assert result.notices == ("ADetailer found nothing for 'segment:zebra'; the image is unchanged.",)
    with pytest.raises(InvalidValueError, match=r"unit 1: its prompt has 2 tags <segment:...>; allowed is one"):
        detailed(library, engine, tmp_path, ad_prompt="<segment:hat> a <segment:cat> b")
    with pytest.raises(InvalidValueError, match=r"unit 1: <segment:hat:size=3> has size="):
        detailed(library, engine, tmp_path, ad_prompt="<segment:hat:size=3> a")


def test_without_a_model_the_detailer_says_what_to_get(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no model of OWLv2 or CLIPSeg in models/segmentation"):
        detailed(loaded(engine, tmp_path), engine, tmp_path, ad_prompt="<segment:hat> a")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Path]]:
    folder = tmp_path_factory.mktemp("data")
    services = fake_services(folder)
    services.scripts.in_line = partial(call, services.queue, services.scripts.callbacks.compute)
    yield TestClient(whole_api(services), raise_server_exceptions=False), folder / "models" / "segmentation"
    services.dispatcher.close()


def in_base64(image: Image.Image) -> str:
    file = BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


PHOTO = Image.fromarray(np.random.default_rng(1).integers(0, 255, (48, 80, 3), dtype=np.uint8))


def test_masks_over_the_api(client: tuple[TestClient, Path]) -> None:
    """A click, a box and a word, by real models with random weights."""
    api, folder = client
    missing = api.post("/featherweight/v1/segment", json={"image": in_base64(PHOTO), "points": [[4, 5, 1]]})
    assert (
        missing.status_code == 422 and "There is no model of SAM 2 in models/segmentation" in missing.json()["errors"]
    )
    files.save(files.sam(), folder / "sam2-tiny" / "model.safetensors", config=True)
    files.save(files.clipseg(), folder / "clipseg.safetensors")
    uri = f"data:image/png;base64,{in_base64(PHOTO)}"
    for body in ({"points": [[4, 5, 1], [70, 40, 0]]}, {"box": [4, 5, 60, 40]}, {"words": "cat", "score": 0.0}):
        reply = api.post("/featherweight/v1/segment", json={"image": uri, **body})
        assert reply.status_code == 200, reply.text
        mask = Image.open(BytesIO(base64.b64decode(reply.json()["mask"])))
        assert mask.mode == "L" and mask.size == PHOTO.size and mask.getbbox() is not None
        (thing,) = reply.json()["found"]
        assert thing["label"] == body.get("words", "") and len(thing["box"]) == 4 and 0 <= thing["score"] <= 1
    whole = api.post("/featherweight/v1/segment", json={"image": uri, "words": "cat", "score": 0.0, "invert": True})
    assert Image.open(BytesIO(base64.b64decode(whole.json()["mask"]))).getbbox() is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"points": [[80.5, 5, 1]]}, "The point 80.5, 5 is outside of the image, which is 80x48 pixels"),
        ({"box": [81, 5, 90, 9]}, "The box is outside of the image"),
        ({"words": "cat", "image": "?"}, "image is no base64"),
        ({"words": "cat", "image": ""}, "image is empty"),
        ({"words": "cat", "image": base64.b64encode(b"hello").decode()}, "image is no image file that can be read"),
        ({}, "Give either points or a box, or words"),
    ],
)
def test_what_cannot_be_masked_is_answered(client: tuple[TestClient, Path], body: dict[str, Any], said: str) -> None:
    api, folder = client
    files.save(files.clipseg(), folder / "clipseg.safetensors")
    reply = api.post("/featherweight/v1/segment", json={"image": in_base64(PHOTO), **body})
    assert reply.status_code == 422 and said in reply.json()["errors"], reply.text


def test_a_preprocessor_of_controlnet_draws_all_things(client: tuple[TestClient, Path]) -> None:
    """By real models with random weights, and by what a detector finds: small things over large ones."""
    api, folder = client
    files.save(files.sam(), folder / "sam2-tiny" / "model.safetensors", config=True)
    body = {"controlnet_module": "mobile_sam", "controlnet_input_images": [in_base64(PHOTO)]}
    reply = api.post("/controlnet/detect", json={**body, "controlnet_processor_res": 64})
    assert reply.status_code == 200, reply.text
    assert Image.open(BytesIO(base64.b64decode(reply.json()["images"][0]))).size == (107, 64)
    boxes = ((0.0, 0.0, 20.0, 20.0), (5.0, 5.0, 10.0, 10.0))
    modules = sys.modules["lib_controlnet.preprocessors"]
    job = sys.modules["lib_controlnet.job"].Job
    found = [Detection(box, 0.9) for box in reversed(boxes)]
    image = np.zeros((64, 64, 3), np.uint8)
    drawn = modules.MODULES["mobile_sam"].run(job(image, 64, 0.5, 0.0, detect=lambda image, name, least: found))
    assert len({tuple(drawn[y, x]) for x, y in ((2, 2), (7, 7), (40, 40))}) == 3 and not drawn[40, 40].any()
