"""Extras over HTTP: the recorded cases to the last bit, batches, errors, and the images of the page's tab."""

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from modules.images.encode import encode_image
from modules.jobs.work.extras import ExtrasRequest, Source, extras_of
from modules.services import Services
from tests.recordings import REFERENCE, cases

RECORDED = [
    case
    for case in cases()
    if case["id"].startswith(("extras/", "png-info/")) and (REFERENCE / case["payload"]["image"]["$file"]).is_file()
]
PNG = base64.b64encode(encode_image(Image.new("RGB", (16, 8), "red"), "png", "a cat\nSteps: 1, Seed: 2")).decode()
SINGLE, BATCH = "/sdapi/v1/extra-single-image", "/sdapi/v1/extra-batch-images"


def image_of(text: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(text)))


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["id"])
def test_recorded_replies(client: TestClient, case: dict[str, Any]) -> None:
    body = {}
    for key, value in case["payload"].items():
        if isinstance(value, dict):
            value = base64.b64encode((REFERENCE / value["$file"]).read_bytes()).decode()
        body[key] = value
    reply = client.post(case["endpoint"], json=body)
    assert reply.status_code == case["status"]
    found = reply.json()
    assert {key: found[key] for key in case["reply"]} == case["reply"]
    for recorded in case["images"]:
        ours, theirs = image_of(found["image"]), Image.open(REFERENCE / recorded["file"])
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
        assert ours.info == theirs.info


def test_the_text_of_an_image_stays_beside_what_was_done(client: TestClient) -> None:
    reply = client.post(SINGLE, json={"image": f"data:image/png;base64,{PNG}", "upscaler_1": "lanczos"})
    assert image_of(reply.json()["image"]).info == {
        "parameters": "a cat\nSteps: 1, Seed: 2",
        "postprocessing": "Postprocess upscale by: 2.0, Postprocess upscaler: Lanczos",
    }


def test_an_alpha_channel_is_enlarged_with_the_image(client: TestClient) -> None:
    source = Image.open(REFERENCE / "inputs" / "init64_alpha.png")
    data = base64.b64encode((REFERENCE / "inputs" / "init64_alpha.png").read_bytes()).decode()
    body = {"image": data, "upscaler_1": "Lanczos", "upscaler_2": "Nearest", "extras_upscaler_2_visibility": 0.5}
    first, second = (source.resize((128, 128), how) for how in (Image.Resampling.LANCZOS, Image.Resampling.NEAREST))
    found = image_of(client.post(SINGLE, json=body).json()["image"])
    assert source.mode == found.mode == "RGBA"
    assert np.array_equal(np.asarray(found), np.asarray(Image.blend(first, second, 0.5)))
    clear = base64.b64encode(encode_image(Image.new("RGBA", (16, 16)), "png")).decode()
    assert image_of(client.post(SINGLE, json={"image": clear, "upscaling_resize": 1}).json()["image"]).size == (16, 16)


def test_a_batch_answers_with_all_that_could_be_done(client: TestClient) -> None:
    files = [{"data": PNG, "name": "a.png"}, {"data": "AAAA", "name": "b.png"}, {"data": PNG, "name": "a.png"}]
    reply = client.post(BATCH, json={"imageList": files, "upscaler_1": "Nearest", "upscaling_resize": 3}).json()
    assert [image_of(text).size for text in reply["images"]] == [(48, 24), (48, 24)]
    assert reply["html_info"] == "<p>Postprocess upscale by: 3.0, Postprocess upscaler: Nearest</p>"
    (failure,) = reply["failures"]
    assert failure["name"] == "b.png" and "no image file that can be read" in failure["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        (SINGLE, {}, 422, "There is no image"),
        (SINGLE, {"image": "!"}, 422, "no base64 text"),
        (SINGLE, {"image": PNG, "upscaler_1": "Lancos"}, 404, "Did you mean 'Lanczos'"),
        (SINGLE, {"image": PNG, "upscaler_2": "x"}, 404, "Unknown upscaler 'x'"),
        (SINGLE, {"image": PNG, "resize_mode": 7}, 422, "resize_mode"),
        (SINGLE, {"image": PNG, "upscaling_resize": 0}, 422, "upscaling_resize"),
        (SINGLE, {"image": PNG, "upscaler_1": "Lanczos", "upscaling_resize": 65}, 422, "at most 64"),
        (BATCH, {"imageList": []}, 422, "There is no image"),
        (BATCH, {"imageList": [{"data": "AAAA", "name": "b.png"}]}, 422, "None of 1 images could be done"),
        (BATCH, {}, 422, "imageList"),
    ],
)
def test_bad_requests_get_a_sentence(
    client: TestClient, path: str, body: dict[str, Any], status: int, said: str
) -> None:
    reply = client.post(path, json=body)
    assert reply.status_code == status
    assert said in reply.json()["errors"]


def test_nothing_of_the_api_is_saved_or_kept(client: TestClient, services: Services) -> None:
    client.post(SINGLE, json={"image": PNG, "upscaler_1": "Lanczos"})
    assert not list((services.paths.outputs_dir).rglob("*.png"))
    task = services.queue.known.tasks("extras")[0]
    assert extras_of(services).run_of(task.task_id).images == []


def test_results_of_the_page_are_served_from_their_files(client: TestClient, services: Services) -> None:
    source = Source("x", data=PNG)
    run = extras_of(services).start(ExtrasRequest(sources=(source,)))
    assert run.task.wait(120)
    url = "/internal/extras-image"
    reply = client.get(url, params={"id_task": run.task.task_id, "index": 0})
    assert reply.headers["content-type"] == "image/png"
    assert reply.headers["x-content-type-options"] == "nosniff"
    path = Path(run.task.result()["results"][0]["path"])
    assert reply.content == path.read_bytes()
    assert client.get(url, params={"id_task": run.task.task_id, "index": 1}).status_code == 404
    assert client.get(url, params={"id_task": "no", "index": 0}).status_code == 404
    path.unlink()
    reply = client.get(url, params={"id_task": run.task.task_id, "index": 0})
    assert reply.status_code == 404 and "cannot be read any more" in reply.json()["errors"]


def test_interrogate_names_a_drawing_and_refuses_what_it_cannot(client: TestClient) -> None:
    drawing = Image.new("RGB", (128, 128), (40, 80, 220))
    drawing.paste((220, 40, 40), (30, 30, 98, 98))
    body = {"image": base64.b64encode(encode_image(drawing, "png")).decode(), "model": "clip"}
    reply = client.post("/sdapi/v1/interrogate", json=body)
    assert reply.json() == {"caption": "a large red square on a blue background"}
    for more, status, said in (
        ({"image": ""}, 404, "Image not found"),
        ({"model": "x"}, 404, "Unknown interrogate model 'x'"),
        ({"image": "!"}, 422, "no base64 text"),
        ({"image": PNG}, 422, "There is no captioning model"),
    ):
        reply = client.post("/sdapi/v1/interrogate", json={**body, **more})
        assert reply.status_code == status and said in reply.json()["errors"]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "RGB"])
def test_an_image_that_is_nowhere_opaque_is_answered(client: TestClient, mode: str) -> None:
    notes: dict[str, Any] = {"P": b"\0" * 2, "L": 0, "RGB": (0, 0, 0)}
    file = BytesIO()
    Image.new(mode, (8, 8)).save(file, "PNG", **({"transparency": notes[mode]} if mode in notes else {}))
    sent = {"image": base64.b64encode(file.getvalue()).decode(), "upscaling_resize": 1}
    reply = client.post("/sdapi/v1/extra-single-image", json=sent)
    assert reply.status_code == 200 and image_of(reply.json()["image"]).size == (8, 8), reply.text
