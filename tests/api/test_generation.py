import base64
import io
import json
import socket
import threading
import time
from typing import Any

from fastapi.testclient import TestClient
from PIL import Image

from modules.services import Services
from tests.recordings import cases

SMALL = {"prompt": "a cat", "steps": 2, "width": 64, "height": 64, "sampler_name": "Euler", "seed": 5}


def post(client: TestClient, path: str, body: object) -> dict[str, Any]:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    data: dict[str, Any] = reply.json()
    return data


def image_of(text: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(text)))


def test_the_reply_has_the_recorded_shape(client: TestClient) -> None:
    reply = post(client, "/sdapi/v1/txt2img", SMALL)
    assert list(reply) == ["images", "parameters", "info"]
    info = json.loads(reply["info"])
    recorded = next(case for case in cases() if case["id"] == "sampler/euler")["info"]
    assert list(info) == list(recorded)
    for key, value in recorded.items():
        if value is not None and info[key] is not None:
            assert isinstance(info[key], float if isinstance(value, float) else type(value) | float), key
    assert reply["parameters"]["prompt"] == "a cat"


def test_the_image_carries_its_infotext(client: TestClient) -> None:
    reply = post(client, "/sdapi/v1/txt2img", SMALL)
    image = image_of(reply["images"][0])
    assert image.size == (64, 64)
    assert image.info["parameters"] == json.loads(reply["info"])["infotexts"][0]
    assert "Seed: 5" in image.info["parameters"]


def test_batches_count_seeds_up(client: TestClient) -> None:
    info = json.loads(post(client, "/sdapi/v1/txt2img", {**SMALL, "batch_size": 2, "n_iter": 2})["info"])
    assert info["all_seeds"] == [5, 6, 7, 8]


def test_images_can_be_left_out(client: TestClient) -> None:
    assert post(client, "/sdapi/v1/txt2img", {**SMALL, "send_images": False})["images"] == []


def test_null_and_unknown_fields_are_tolerated(client: TestClient) -> None:
    body = {**SMALL, "styles": None, "eta": None, "some_new_field": {"x": 1}, "alwayson_scripts": {}, "hr_prompt": None}
    post(client, "/sdapi/v1/txt2img", body)


def test_old_sampler_names_and_the_legacy_field_are_understood(client: TestClient) -> None:
    info = json.loads(post(client, "/sdapi/v1/txt2img", {**SMALL, "sampler_name": "DPM++ 2M Karras"})["info"])
    assert "Sampler: DPM++ 2M, Schedule type: Karras" in info["infotexts"][0]
    legacy = {key: value for key, value in SMALL.items() if key != "sampler_name"}
    info = json.loads(post(client, "/sdapi/v1/txt2img", {**legacy, "sampler_index": "k_euler_a"})["info"])
    assert "Sampler: Euler a" in info["infotexts"][0]


def test_old_clients_name_the_size_of_the_first_pass(client: TestClient) -> None:
    hires = {"enable_hr": True, "hr_scale": 2, "denoising_strength": 0.5, "firstphase_width": 64}
    reply = post(client, "/sdapi/v1/txt2img", {**SMALL, **hires, "width": 128, "height": 128, "firstphase_height": 64})
    written = json.loads(reply["info"])["infotexts"][0]
    assert "Size: 64x64" in written and "Hires upscale: 2" in written
    refused = client.post("/sdapi/v1/txt2img", json={**SMALL, **hires})
    assert refused.status_code == 422 and "are 64 and 0" in refused.text


def test_an_infotext_names_its_sampler_as_old_versions_did(client: TestClient) -> None:
    text = "a\nSteps: 2, Sampler: DPM++ 2M SDE Exponential, Seed: 1, Size: 64x64, Denoising strength: 0.5, "
    hires = "Hires upscale: 2, Hires upscaler: Latent, Hires sampler: DPM++ 2M Karras"
    written = json.loads(post(client, "/sdapi/v1/txt2img", {"infotext": text + hires})["info"])["infotexts"][0]
    assert "Sampler: DPM++ 2M SDE, Schedule type: Exponential" in written
    assert "Hires sampler: DPM++ 2M, Hires schedule type: Karras" in written
    numbers = {"seed": 5, "steps": 3, "sampler_name": "euler_ancestral"}
    comfy = {"class_type": "KSampler", "inputs": {**numbers, "positive": ["2", 0], "latent_image": ["2", 0]}}
    node = {"class_type": "CLIPTextEncode", "inputs": {"text": "a barn"}}
    graph = json.dumps({"1": comfy, "2": node})
    written = json.loads(post(client, "/sdapi/v1/txt2img", {"infotext": graph})["info"])["infotexts"][0]
    assert written.startswith("a barn\nSteps: 3, Sampler: Euler a") and "Seed: 5" in written


def test_overrides_and_per_call_values_hold_for_one_request(client: TestClient, services: Services) -> None:
    before = services.settings.current.to_json()
    body = {**SMALL, "sampler_name": "Euler a", "eta": 0.5, "override_settings": {"CLIP_stop_at_last_layers": 2}}
    info = json.loads(post(client, "/sdapi/v1/txt2img", body)["info"])
    assert "Clip skip: 2" in info["infotexts"][0] and "Eta: 0.5" in info["infotexts"][0]
    assert services.settings.current.to_json() == before
    info = json.loads(post(client, "/sdapi/v1/txt2img", SMALL)["info"])
    assert "Clip skip" not in info["infotexts"][0]


def test_overrides_are_stored_when_they_shall_not_be_restored(client: TestClient, services: Services) -> None:
    body = {**SMALL, "override_settings": {"jpeg_quality": 71}, "override_settings_restore_afterwards": False}
    post(client, "/sdapi/v1/txt2img", body)
    assert services.settings.current["jpeg_quality"] == 71
    services.settings.update({"jpeg_quality": 80})


def test_the_infotext_field_fills_what_was_not_set(client: TestClient) -> None:
    text = "a dog\nNegative prompt: ugly\nSteps: 3, Sampler: Euler a, Schedule type: Karras, CFG scale: 5, Seed: 42, "
    text += "Size: 64x128, Clip skip: 2, Denoising strength: 0.4, Hires upscale: 1.5, Hires upscaler: Lanczos"
    info = json.loads(post(client, "/sdapi/v1/txt2img", {"infotext": text, "seed": 9})["info"])
    written = info["infotexts"][0]
    assert written.startswith("a dog\nNegative prompt: ugly\nSteps: 3, Sampler: Euler a, Schedule type: Karras")
    for part in ("Seed: 9", "Size: 64x128", "Clip skip: 2", "Denoising strength: 0.4", "Hires upscaler: Lanczos"):
        assert part in written


def test_png_info_reads_what_txt2img_wrote(client: TestClient) -> None:
    reply = post(client, "/sdapi/v1/txt2img", SMALL)
    info = post(client, "/sdapi/v1/png-info", {"image": "data:image/png;base64," + reply["images"][0]})
    assert info["info"].startswith("a cat\nSteps: 2")
    assert info["parameters"]["Seed"] == "5"


def test_interrupt_and_progress_while_a_job_runs(client: TestClient) -> None:
    done: list[dict[str, Any]] = []
    body = {**SMALL, "prompt": "slow", "steps": 150}
    thread = threading.Thread(target=lambda: done.append(post(client, "/sdapi/v1/txt2img", body)))
    thread.start()
    progress = client.get("/sdapi/v1/progress").json()
    until = time.monotonic() + 120
    while not progress["progress"] and time.monotonic() < until:
        time.sleep(0.05)
        progress = client.get("/sdapi/v1/progress").json()
    assert 0 < progress["progress"] < 1
    assert progress["state"]["job_count"] == 1
    client.post("/sdapi/v1/interrupt")
    thread.join(10)
    assert done and done[0]["images"] == []
    assert client.get("/sdapi/v1/progress").json()["progress"] == 0


def test_two_clients_wait_for_each_other(client: TestClient, services: Services) -> None:
    replies: list[dict[str, Any]] = []
    bodies = [{**SMALL, "steps": 20, "seed": seed} for seed in (1, 2, 3)]
    threads = [
        threading.Thread(target=lambda body=body: replies.append(post(client, "/sdapi/v1/txt2img", body)))
        for body in bodies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(json.loads(reply["info"])["seed"] for reply in replies) == [1, 2, 3]


def test_a_client_that_goes_away_loses_no_job(port: int, services: Services) -> None:
    body = json.dumps({**SMALL, "prompt": "slow and lonely", "steps": 30, "force_task_id": "task(lonely)"}).encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"POST /sdapi/v1/txt2img HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        until = time.monotonic() + 120
        while services.queue.known.find("task(lonely)") is None and time.monotonic() < until:
            time.sleep(0.02)
    job = services.queue.known.get("task(lonely)")
    assert job.wait(120)
    assert len(job.result().samples) == 1
