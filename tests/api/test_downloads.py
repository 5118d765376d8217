"""Getting models over HTTP: a look, a download as a task, what is refused."""

import json
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from modules.api.app import build_api
from modules.assembly import build_services
from modules.flags.flags import Flags
from modules.services import Services
from tests.downloads.file_server import Behavior, Handler, safetensors, serving

LORA = safetensors({"lora_unet_a.lora_down.weight": ("F16", [4, 64])})
OTHER = safetensors({"lora_unet_b.lora_down.weight": ("F16", [4, 32])})
LARGE = safetensors({"model.diffusion_model.x": ("F16", [1024, 1024])})
ROUTE = "/featherweight/v1/downloads"
MODELS = "/featherweight/v1/models"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = build_services(Flags(data_dir=str(tmp_path_factory.mktemp("data")), no_half=True, use_cpu=("all",)))
    services.dispatcher.start()
    yield services
    services.dispatcher.close()


@pytest.fixture(scope="module")
def client(services: Services) -> Iterator[TestClient]:
    with TestClient(build_api(services), raise_server_exceptions=False) as client:
        yield client


def test_a_look_and_a_download(client: TestClient, services: Services) -> None:
    with serving({"/style.safetensors": Behavior(LORA)}) as address:
        body = {"source": f"{address}/style.safetensors"}
        seen = client.post(f"{ROUTE}/look", json=body).json()
        assert (seen["folder"], seen["name"], seen["is_there"]) == ("Lora", "style.safetensors", False)
        task = client.post(ROUTE, json=body).json()
        limit = time.monotonic() + 120
        while task["status"] in ("queued", "running") and time.monotonic() < limit:
            time.sleep(0.02)
            task = client.get(f"/featherweight/v1/tasks/{task['id']}").json()
    assert task["status"] == "done", task
    assert task["outcome"]["folder"] == "Lora" and not task["outcome"]["was_there"]
    assert Path(services.paths.lora_dirs[0] / "style.safetensors").read_bytes() == LORA


def test_the_list_is_answered(client: TestClient) -> None:
    known = client.get(f"{ROUTE}/known").json()
    assert next(item for item in known if item["name"] == "z-image-turbo")["parts"] == ["qwen3-4b", "flux-vae"]


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({"source": "nothing"}, 422, "is none of"),
        ({"source": "o/r/a.ckpt"}, 422, "pickle"),
        ({"source": "o/r/a.safetensors", "folder": "x"}, 404, "Unknown folder"),
        ({"source": "o/r/a.safetensors", "name": "a.exe"}, 422, "no model file"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_it_is_in_line(
    client: TestClient, body: dict[str, str], status: int, sentence: str
) -> None:
    reply = client.post(ROUTE, json=body)
    assert reply.status_code == status and sentence in reply.json()["detail"]


def finished(client: TestClient, task: dict[str, Any]) -> dict[str, Any]:
    limit = time.monotonic() + 120
    while task["status"] in ("queued", "running") and time.monotonic() < limit:
        time.sleep(0.02)
        task = client.get(f"/featherweight/v1/tasks/{task['id']}").json()
    return task


def test_what_is_here_already_is_told_by_its_bytes(client: TestClient, services: Services) -> None:
    mine = services.paths.lora_dirs[0] / "mine" / "of old.safetensors"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(OTHER)
    with serving({"/new.safetensors": Behavior(OTHER)}) as address:
        task = finished(client, client.post(ROUTE, json={"source": f"{address}/new.safetensors"}).json())
    assert task["outcome"]["was_there"] and task["outcome"]["file"] == "of old.safetensors"
    assert not (services.paths.lora_dirs[0] / "new.safetensors").exists()


def test_a_download_is_stopped_then_found_again_or_thrown_away(client: TestClient, services: Services) -> None:
    def drips(handler: Handler, number: int) -> bool:
        if handler.headers.get("Range", "").endswith("-65535"):
            return False
        handler.give(behavior, cut=200_000)
        time.sleep(0.2)
        return True

    behavior = Behavior(LARGE, fault=drips)
    part = services.paths.checkpoint_dirs[0] / ".slow.safetensors.part"

    def begun(address: str) -> dict[str, Any]:
        task = client.post(ROUTE, json={"source": f"{address}/slow.safetensors"}).json()
        limit = time.monotonic() + 120
        while not (part.exists() and part.stat().st_size) and time.monotonic() < limit:
            time.sleep(0.01)
        return dict(task)

    with serving({"/slow.safetensors": behavior}) as address:
        task = begun(address)
        assert client.get(f"{ROUTE}/unfinished").json() == [], "it is running"
        client.post(f"/featherweight/v1/tasks/{task['id']}/cancel")
        assert finished(client, task)["status"] == "interrupted"
        (left,) = client.get(f"{ROUTE}/unfinished").json()
        assert (left["name"], left["folder"], left["size_bytes"]) == (
            "slow.safetensors",
            "Stable-diffusion",
            len(LARGE),
        )
        assert 0 < left["done_bytes"] < len(LARGE) and left["url"] == f"{address}/slow.safetensors"
        client.post(f"{ROUTE}/cancel", json={"task_id": begun(address)["id"]})
        assert not part.exists() and client.get(f"{ROUTE}/unfinished").json() == []
        task = begun(address)
        client.post(f"/featherweight/v1/tasks/{task['id']}/cancel")
        assert finished(client, task)["status"] == "interrupted"
        client.post("/featherweight/v1/queue/pause")
        waiting = client.post(ROUTE, json={"source": f"{address}/slow.safetensors"}).json()
        assert part.exists(), "of the try before"
        client.post(f"{ROUTE}/cancel", json={"task_id": waiting["id"]})
        client.post("/featherweight/v1/queue/resume")
        assert not part.exists(), "one that never began has nothing to say of what came"
    assert client.post(f"{ROUTE}/cancel", json={"task_id": "none"}).status_code == 404
    assert client.post(f"{ROUTE}/discard", json={"folder": "x", "name": "a.safetensors"}).status_code == 404


def test_models_on_disk_are_listed_moved_and_deleted(client: TestClient, services: Services) -> None:
    path = services.paths.lora_dirs[0] / "shelf.safetensors"
    path.write_bytes(LORA + b"\0")

    def files() -> dict[str, Any]:
        return {item["name"]: item for item in client.get(MODELS).json()["files"]}

    item = files()["shelf.safetensors"]
    assert (item["kind"], item["folder"], item["missing"]) == ("Lora", "", [])
    moved = client.post(f"{MODELS}/move", json={"key": item["key"], "folder": "sub"}).json()
    assert moved["folder"] == "sub" and not path.exists()
    assert client.post(f"{MODELS}/delete", json={"key": item["key"]}).status_code == 404
    trashed = client.post(f"{MODELS}/delete", json={"key": moved["key"]}).json()
    assert "shelf.safetensors" not in files() and client.get(MODELS).json()["trash"] == [trashed]
    assert client.post(f"{MODELS}/restore", json={"id": trashed["id"]}).json() == {"file": "shelf.safetensors"}
    (path.parent / "double.safetensors").write_bytes(LORA + b"\0")
    task = finished(client, client.post(f"{MODELS}/doubles").json())
    assert task["outcome"]["hashed"] >= 2
    assert files()["double.safetensors"]["doubles"] == [files()["shelf.safetensors"]["key"]]


def test_what_a_source_says_comes_onto_the_card_and_spares_the_users_words(
    client: TestClient, services: Services
) -> None:
    image = BytesIO()
    Image.new("RGB", (1200, 600), (9, 90, 9)).save(image, "JPEG")
    readme = b"---\nbase_model: sdxl\ninstance_prompt: sks\nthumbnail: a.jpg\n---\nA LoRA of a dog."
    way = "/o/dog/resolve/main"
    behaviors = {
        f"{way}/dog.safetensors": Behavior(LORA + bytes(2)),
        f"{way}/README.md": Behavior(readme),
        f"{way}/a.jpg": Behavior(image.getvalue()),
    }
    path = services.paths.lora_dirs[0] / "dog.safetensors"
    with serving(behaviors) as address:
        finished(client, client.post(ROUTE, json={"source": f"{address}{way}/dog.safetensors"}).json())
        assert not path.with_suffix(".json").exists(), "nothing is fetched without being asked for"
        path.with_suffix(".json").write_text('{"description": "mine", "other": 1}', encoding="utf-8")
        found = client.post(f"{MODELS}/about", json={"key": "Lora/0/dog.safetensors"}).json()
    assert (found["source"], found["triggers"], found["has_preview"]) == ("Hugging Face", ["sks"], True)
    notes = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert notes == {"description": "mine", "other": 1, "activation text": "sks", "sd version": "SDXL"}
    with Image.open(path.with_name("dog.preview.png")) as preview:
        assert preview.size == (768, 384)


def test_three_models_fit_this_machine(client: TestClient) -> None:
    found = client.get(f"{ROUTE}/fitting").json()
    assert len(found["models"]) == 3 and found["memory_gb"] > 0 and found["cores"] > 0
