"""Bad input gets a sentence and a 4xx, never a 500, and never a silent change."""

import re
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from modules.api.generation.requests import request_from
from modules.api.schema.schemas import Txt2ImgBody
from modules.services import Services
from tests.api.test_generation import SMALL, post


@pytest.mark.parametrize(
    ("changes", "status", "sentence"),
    [
        ({"width": 0}, 422, "width is 0"),
        ({"width": 7}, 422, "allowed is 16 to 8192"),
        ({"height": 100_000}, 422, "height is 100000"),
        ({"steps": 10_000}, 422, "steps is 10000"),
        ({"batch_size": 0}, 422, "batch size is 0"),
        ({"n_iter": 0}, 422, "batch count is 0"),
        ({"sampler_name": "Oiler"}, 404, "Did you mean 'Euler'"),
        ({"scheduler": "Caras"}, 404, "Known: "),
        ({"styles": ["gone"]}, 404, "gone"),
        ({"override_settings": {"sd_model_checkpoint": "gone"}}, 404, "Unknown checkpoint 'gone'"),
        ({"override_settings": {"no_such_key": 1}}, 422, "no_such_key"),
        ({"override_settings": {"CLIP_stop_at_last_layers": "many"}}, 422, "CLIP_stop_at_last_layers"),
        ({"prompt": "a\0b"}, 422, "null character"),
        ({"prompt": "x" * 300_000}, 422, "300000 characters"),
        ({"steps": "many"}, 422, "steps"),
        ({"width": {"a": 1}}, 422, "width"),
        ({"seed": 2**70}, 422, "seed"),
        ({"cfg_scale": 1e300}, 422, "CFG scale"),
        ({"script_name": "x/y/z"}, 404, "Unknown script 'x/y/z'. Known: "),
        ({"script_name": "X/Y/Z plot", "script_args": [0] * 19}, 422, "takes 18 arguments"),
        ({"alwayson_scripts": {"X/Y/Z plot": {"args": []}}}, 422, "script_name"),
        ({"refiner_checkpoint": "no such file"}, 404, "checkpoint"),
        ({"enable_hr": True, "hr_upscaler": "Blur"}, 404, "hires upscaler 'Blur'"),
        ({"enable_hr": True, "denoising_strength": 3}, 422, "denoising strength is 3"),
    ],
)
def test_wrong_values_are_answered_with_what_is_allowed(
    client: TestClient, changes: dict[str, Any], status: int, sentence: str
) -> None:
    reply = client.post("/sdapi/v1/txt2img", json={**SMALL, **changes})
    assert reply.status_code == status, reply.text
    assert sentence in reply.json()["errors"]
    assert set(reply.json()) == {"error", "detail", "body", "errors"}


@pytest.mark.parametrize("text", [b"{nope", b"[1, 2]", b'"text"', b"", b'{"steps": 1e400}'])
def test_malformed_bodies_are_422(client: TestClient, text: bytes) -> None:
    reply = client.post("/sdapi/v1/txt2img", content=text, headers={"Content-Type": "application/json"})
    assert reply.status_code == 422, reply.text


@pytest.mark.parametrize("prompt", ["a 🐈 on the 🌙", "قطة على القمر", "((((", "[a:b", "x " * 50_000])
def test_odd_prompts_work(client: TestClient, prompt: str) -> None:
    assert post(client, "/sdapi/v1/txt2img", {**SMALL, "prompt": prompt})["images"]


@pytest.mark.parametrize("image", ["", "not base64!", "aGVsbG8=", "data:image/png;base64,iVBORw0KGgo="])
def test_what_is_no_image_is_422(client: TestClient, image: str) -> None:
    reply = client.post("/sdapi/v1/png-info", json={"image": image})
    assert reply.status_code == 422, reply.text


@pytest.mark.parametrize("path", ["/sdapi/v1/anything", "/sdapi/v2/anything"])
def test_paths_that_do_not_exist_are_404_with_a_sentence(client: TestClient, path: str) -> None:
    reply = client.post(path, json={})
    assert reply.status_code == 404
    assert "/docs" in reply.json()["errors"]


def test_a_task_id_names_one_waiting_job_at_a_time(client: TestClient, services: Services) -> None:
    slow = request_from(Txt2ImgBody.model_validate({**SMALL, "prompt": "slow", "steps": 40}), services)
    job = services.queue.submit(slow, "task(once)")
    reply = client.post("/sdapi/v1/txt2img", json={**SMALL, "force_task_id": "task(once)"})
    assert reply.status_code == 422 and "waits or runs" in reply.json()["errors"]
    job.interrupt()
    assert job.wait(120)
    for _ in range(2):  # what has ended gives its id back
        post(client, "/sdapi/v1/txt2img", {**SMALL, "force_task_id": "task(once)"})


def test_a_task_id_may_be_used_again_when_its_job_has_ended(client: TestClient) -> None:
    for _ in range(2):
        reply = client.post("/sdapi/v1/txt2img", json={**SMALL, "force_task_id": "task(once)"})
        assert reply.status_code == 200


def test_a_body_beyond_the_limit_is_refused(client: TestClient) -> None:
    reply = client.post("/sdapi/v1/png-info", content=b"{}", headers={"Content-Length": str(10**10)})
    assert reply.status_code == 413


def test_every_reply_says_how_long_it_took(client: TestClient) -> None:
    assert float(client.get("/sdapi/v1/samplers").headers["X-Process-Time"]) >= 0


def test_another_method_and_a_slash_behind_a_route_lead_to_it(client: TestClient, app: FastAPI) -> None:
    for path, operations in app.openapi()["paths"].items():
        address, methods = re.sub(r"{[^}]*}", "x", path), sorted(method.upper() for method in operations)
        wrong = "PATCH" if "PATCH" not in methods else "DELETE"
        reply = client.request(wrong, address)
        allowed = reply.headers["Allow"].split(", ")
        assert reply.status_code == 405 and {*methods} <= {*allowed} and wrong not in allowed, path
        said = reply.json()
        said = said["error"]["message"] if address.startswith("/v1/") else said["errors"]
        assert f"{address} takes {' and '.join(allowed)}, not {wrong}." in said, path
        if address.startswith("/v1/"):
            continue  # other paths of this API answer in its own shape
        reply = client.request(methods[0], f"{address}/?a=b%20c", follow_redirects=False)
        assert reply.headers["Location"] == f"../{address.rpartition('/')[2]}?a=b%20c", path
        assert reply.status_code == 307, path
    assert client.head("/sdapi/v1/txt2img").status_code == 405
    for path in ("/sdapi/v1/none", "/sdapi/v1/none/", "/sdapi/v1/options//", "/sdapi/", "/nothing/"):
        assert client.get(path).status_code == 404, path
    reply = client.post("/sdapi/v1/txt2img/", json={"steps": "many"})
    assert reply.status_code == 422 and "steps" in reply.text
    assert client.get("/sdapi/v1/options/").json() == client.get("/sdapi/v1/options").json()
