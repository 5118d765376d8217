"""What the page's script asks: progress of a task, its result, images, token counts."""

import io
import time

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from modules.api.jobs.progress import STOPPING
from modules.processing.request.request import GenerationRequest
from modules.services import Services
from tests.fakes import CHECKPOINT


def submit(services: Services, task: str, **values: object) -> None:
    request = GenerationRequest(**{"prompt": "x", "width": 64, "height": 64, "steps": 3, "sampler": "Euler", **values})  # type: ignore[arg-type]
    services.queue.submit(request, task_id=task, preview_every=1)


def state(client: TestClient, task: str) -> dict[str, object]:
    reply: dict[str, object] = client.post("/internal/progress", json={"id_task": task, "id_live_preview": -1}).json()
    return reply


def test_an_interrupted_batch_says_that_it_stops_after_its_image(client: TestClient, services: Services) -> None:
    submit(services, "task(batch)", prompt="slow", steps=400, batch_count=20)
    until = time.monotonic() + 120
    while not state(client, "task(batch)")["step"] and time.monotonic() < until:
        time.sleep(0.02)
    services.queue.interrupt("task(batch)", after_batch=True)
    assert state(client, "task(batch)")["textinfo"] == STOPPING
    services.queue.interrupt("task(batch)", after_batch=True)
    job = services.queue.known.get("task(batch)")
    assert job.wait(120) and job.result().interrupted


def test_a_task_is_followed_from_the_line_to_its_images(client: TestClient, services: Services) -> None:
    submit(services, "task(first)", prompt="slow", steps=40)
    submit(services, "task(second)")
    until = time.monotonic() + 120
    while not state(client, "task(first)")["live_preview"] and time.monotonic() < until:
        time.sleep(0.02)
    running = state(client, "task(first)")
    assert running["active"] and str(running["live_preview"]).startswith("data:image/png;base64,")
    assert running["steps"] == 40
    waiting = state(client, "task(second)")
    assert waiting["queued"] and "1 job before this one" in str(waiting["textinfo"])
    assert client.get("/internal/pending-tasks").json() == {"size": 2, "tasks": ["task(first)", "task(second)"]}
    services.queue.interrupt("task(first)")
    assert services.queue.known.get("task(second)").wait(120)
    assert state(client, "task(second)")["completed"]
    result = client.get("/internal/result", params={"id_task": "task(second)"}).json()
    (image,) = result["images"]
    reply = client.get("/" + image["url"])
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert Image.open(io.BytesIO(reply.content)).info["parameters"] == image["infotext"]


def test_an_unknown_task_is_neither_active_nor_done(client: TestClient) -> None:
    reply = state(client, "task(none)")
    assert not reply["active"] and not reply["queued"] and not reply["completed"]


@pytest.mark.parametrize("index", [-1, 7])
def test_an_image_that_is_not_there_is_404(client: TestClient, services: Services, index: int) -> None:
    submit(services, f"task(images{index})")
    assert services.queue.known.get(f"task(images{index})").wait(120)
    reply = client.get("/internal/image", params={"id_task": f"task(images{index})", "index": index})
    assert reply.status_code == 404


def test_a_chosen_image_is_saved_with_a_line_in_the_log(client: TestClient, services: Services) -> None:
    submit(services, "task(save)", seed=11)
    assert services.queue.known.get("task(save)").wait(120)
    path = client.post("/internal/save-image", json={"id_task": "task(save)", "index": 0}).json()["path"]
    folder = services.paths.data_dir / "log" / "images"
    assert path.startswith(str(folder)) and (folder / "log.csv").read_text().splitlines()[-1].startswith("x,11,64,64")


def test_tokens_are_counted(client: TestClient) -> None:
    reply = client.post("/internal/token-count", json={"text": "a cat, " * 40, "steps": 20}).json()
    assert reply["text"] == f"{reply['count']}/{reply['limit']}"
    assert reply["limit"] == 150


def test_the_engine_is_described(client: TestClient, services: Services) -> None:
    told = client.get("/internal/engine").json()
    assert told["state"] in ("empty", "loading", "ready", "failed")
    assert {"line", "pending", "facts", "hashing", "size"} <= set(told)  # all that the page shows of it


def test_the_page_is_told_whether_its_examples_suit_the_chosen_checkpoint(
    client: TestClient, services: Services
) -> None:
    before = services.settings.current.stable_diffusion.sd_model_checkpoint
    for name, suits in (("featherweight-scenes.safetensors", True), (CHECKPOINT.name, False)):
        services.settings.update({"sd_model_checkpoint": name})
        assert client.get("/internal/engine").json()["is_bundled"] is suits
    services.settings.update({"sd_model_checkpoint": before})
