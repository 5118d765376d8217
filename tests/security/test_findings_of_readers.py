"""What small requests and files once did to the server: memory in gigabytes, minutes of its threads, imports and starts
that never ended. Each is a sentence, or a result, in little time now."""

import base64
import json
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.history.importing import Importer
from modules.history.store import History
from modules.history.thumbnails import Thumbnails
from modules.images.metadata import read_metadata
from modules.memory.timeline import resident_bytes
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from tests.fakes import fake_services, whole_api

NOVELAI = {"Software": "NovelAI", "Description": "x", "Comment": "[" * 100_000}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    with TestClient(whole_api(services), raise_server_exceptions=False) as client:
        yield client
    services.dispatcher.close()


def png(width: int, height: int, texts: dict[str, str] | None = None) -> bytes:
    data, chunks = BytesIO(), PngInfo()
    for key, text in (texts or {}).items():
        chunks.add_text(key, text, zip=True)
    Image.new("RGB", (width, height), (200, 30, 60)).save(data, "PNG", pnginfo=chunks)
    return data.getvalue()


def sent(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("size", [(1, 200), (1, 600), (1, 9000), (9000, 1)])
@pytest.mark.parametrize("module", ["canny", "blur_gaussian", "shuffle"])
def test_a_narrow_image_is_refused_before_it_grows(client: TestClient, module: str, size: tuple[int, int]) -> None:
    """Finding 2: 80 bytes took 8 GB of the server's memory."""
    before = resident_bytes()
    body = {"controlnet_module": module, "controlnet_processor_res": 512, "controlnet_input_images": [sent(png(*size))]}
    reply = client.post("/controlnet/detect", json=body)
    assert reply.status_code == 422 and "short side of 512" in reply.json()["detail"], reply.text[:300]
    after = resident_bytes()
    assert before is None or after is None or after - before < 200e6


def test_a_usual_image_still_becomes_a_map(client: TestClient) -> None:
    body = {
        "controlnet_module": "canny",
        "controlnet_processor_res": 64,
        "controlnet_input_images": [sent(png(96, 64))],
    }
    reply = client.post("/controlnet/detect", json=body)
    assert reply.status_code == 200
    with Image.open(BytesIO(base64.b64decode(reply.json()["images"][0]))) as image:
        assert image.size == (96, 64)


def test_too_many_images_at_once_are_refused(client: TestClient) -> None:
    body = {"controlnet_module": "canny", "controlnet_input_images": [sent(png(8, 8))] * 33}
    reply = client.post("/controlnet/detect", json=body)
    assert reply.status_code == 422 and "allowed are 32" in reply.json()["detail"]


FAR = [-1e5, -1e5, 1, 1e5, 1e5, 1]
CANVAS = {"canvas_width": 64, "canvas_height": 64}


def test_a_pose_far_outside_of_its_canvas_costs_little(client: TestClient) -> None:
    """Finding 3: one person took eleven seconds."""
    before = time.process_time()
    people = [{"pose_keypoints_2d": FAR * 9, "hand_left_keypoints_2d": FAR * 10, "hand_right_keypoints_2d": FAR * 10}]
    reply = client.post("/controlnet/render_openpose_json", json=[{"people": people, **CANVAS}])
    assert reply.status_code == 200 and len(reply.json()["images"]) == 1
    assert time.process_time() - before < 3


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ([{"people": [], **CANVAS}] * 100_000, "100000 poses"),
        ([{"people": [{}] * 201, **CANVAS}], "201 people"),
        ([{"people": [], "canvas_width": 8192, "canvas_height": 8192}], "67.1 million pixels"),
        ([{"people": [{"pose_keypoints_2d": [1.0, 2.0, 1.0] * 300}], **CANVAS}], "at most 200 points"),
        ([{"people": [{"pose_keypoints_2d": [10**12, 2.0, 1.0]}], **CANVAS}], "numbers between"),
    ],
)
def test_more_than_is_drawn_at_a_time_is_refused(client: TestClient, body: list[Any], sentence: str) -> None:
    reply = client.post("/controlnet/render_openpose_json", json=body)
    assert reply.status_code == 422 and sentence in reply.json()["detail"], reply.text[:300]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400", "1" + "0" * 400, "1" + "0" * 5000])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/controlnet/txt2img", '{"prompt": "x", "cfg_scale": %s}'),
        ("/controlnet/img2img", '{"prompt": "x", "denoising_strength": %s}'),
        ("/controlnet/render_openpose_json", '[{"people": [{"pose_keypoints_2d": [%s, 1, 1]}], "canvas_width": 8}]'),
        ("/sdapi/v1/txt2img", '{"seed": %s}'),
    ],
)
@pytest.mark.parametrize("kind", ["application/json", None])
def test_numbers_that_are_none(client: TestClient, path: str, body: str, number: str, kind: str | None) -> None:
    """Finding 18; a body without a type is read as JSON too."""
    headers = {"Content-Type": kind} if kind else {}
    reply = client.post(path, content=(body % number).encode(), headers=headers)
    assert reply.status_code in (400, 422), reply.text[:300]
    assert kind is None or "cannot be taken" in reply.json()["detail"]


def test_words_that_look_like_numbers_are_text(client: TestClient) -> None:
    reply = client.post("/sdapi/v1/png-info", content=b'{"image": "NaN", "x": ["a, NaN", " Infinity"]}')
    assert "cannot be taken" not in reply.text


def test_exports_and_configurations_of_other_shapes(client: TestClient) -> None:
    """Finding 18."""
    reply = client.post("/agent-scheduler/v1/import", json={"content": "[" * 100_000})
    assert reply.status_code == 422 and "nested too deep" in reply.json()["detail"]
    reply = client.post("/featherweight/v1/train", json={"config": {"model": []}})
    assert reply.status_code != 500
    reply = client.post("/featherweight/v1/train", json={"config": {"model": [1]}})
    assert reply.status_code == 422 and "config.model" in reply.json()["detail"]


def test_names_that_no_file_has(client: TestClient) -> None:
    reply = client.post("/sdapi/v1/create/embedding", json={"name": "x" * 300_000})
    assert reply.status_code == 422 and "name" in reply.text
    reply = client.post("/featherweight/v1/downloads/discard", json={"folder": "", "name": "x.safetensors"})
    assert reply.status_code == 404 and "folder" in reply.json()["detail"]


def test_an_image_of_another_program_that_is_too_deep_is_an_image_without_an_infotext(client: TestClient) -> None:
    """Finding 5: it was a 500, and ended the import of its folder and all later ones."""
    reply = client.post("/sdapi/v1/png-info", json={"image": sent(png(8, 8, NOVELAI))})
    assert reply.status_code == 200


def test_one_image_does_not_end_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding 5, and any other exception of a reader."""
    history = History(tmp_path / "history.sqlite", tmp_path / "trash")
    importer = Importer(history, Thumbnails(None))
    folders = [tmp_path / name for name in ("a", "b")]
    for place, folder in enumerate(folders):
        folder.mkdir()
        for number in range(3):
            data = png(8 + number, 8 + place, NOVELAI if number == 1 else None)
            (folder / f"{number}.png").write_bytes(data)
    broken = folders[0] / "0.png"

    def metadata(image: Image.Image) -> object:
        if getattr(image, "filename", "") == str(broken):
            raise RecursionError("planted")
        return read_metadata(image)

    monkeypatch.setattr("modules.history.importing.read_metadata", metadata)
    for folder in folders:
        importer.add(folder)
    assert importer.wait(60)
    counts = [(item["state"], item["counts"]["added"], item["counts"]["skipped"]) for item in history.imports.all()]
    assert counts == [("done", 2, 1), ("done", 3, 0)]
    assert [item["error"] for item in history.imports.all()] == [
        "These could not be read: 0.png. The log says why.",
        None,
    ]
    importer.close()
    history.close()


def test_one_file_does_not_keep_the_server_from_starting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Finding 6."""
    (tmp_path / "any/unet").mkdir(parents=True)
    (tmp_path / "any/model_index.json").write_bytes(b"[" * 100_000)
    (tmp_path / "any/unet/diffusion_pytorch_model.safetensors.index.json").write_bytes(b"[" * 100_000)
    (tmp_path / "good.safetensors").write_bytes(b"x")
    (tmp_path / "hashes.json").write_bytes(b"[" * 100_000)
    catalogue = CheckpointCatalogue((tmp_path,), HashCache(tmp_path / "hashes.json"))
    assert "good.safetensors" in [info.name for info in catalogue.entries]
    assert "hashes.json cannot be read" in caplog.text


def test_a_catalogue_names_what_it_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bad", "good"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"x")
    cache = HashCache(tmp_path / "hashes.json")

    def known(path: Path) -> str | None:
        if path.stem == "bad":
            raise RecursionError("planted")
        return None

    monkeypatch.setattr(cache, "known", known)
    catalogue = CheckpointCatalogue((tmp_path,), cache)
    assert [info.name for info in catalogue.entries] == ["good.safetensors"]
    (fault,) = catalogue.faults
    assert "bad.safetensors cannot be read and was left out: RecursionError" in fault


def test_a_shelf_with_a_deep_header_lists_the_others(client: TestClient, tmp_path: Path) -> None:
    """Finding 25: *Get models* listed nothing."""
    services = fake_services(tmp_path)
    folder = services.paths.data_dir / "models/Stable-diffusion"
    folder.mkdir(parents=True, exist_ok=True)
    content = b"[" * 50_000
    (folder / "deep.safetensors").write_bytes(len(content).to_bytes(8, "little") + content)
    with TestClient(whole_api(services), raise_server_exceptions=False) as own:
        reply = own.get("/featherweight/v1/models")
    services.dispatcher.close()
    assert reply.status_code == 200 and "deep" in json.dumps(reply.json())
