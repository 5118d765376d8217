"""Getting models over HTTP: a look, a download as a task, what is refused."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from modules.api.app import build_api
from modules.assembly import build_services
from modules.flags.flags import Flags
from modules.services import Services
from tests.downloads.file_server import Behavior, safetensors, serving

LORA = safetensors({"lora_unet_a.lora_down.weight": ("F16", [4, 64])})
ROUTE = "/featherweight/v1/downloads"


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
        limit = time.monotonic() + 30
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
