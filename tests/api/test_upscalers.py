"""Upscaler files over HTTP: listed, taken by `hr_upscaler`, and a name that is not there is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from modules.api.app import build_api
from tests.fakes import fake_services
from tests.upscalers.models import save_esrgan


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    services = fake_services(tmp_path, swinir_models_path=str(tmp_path / "elsewhere"))
    with TestClient(build_api(services), raise_server_exceptions=False) as client:
        yield client
    services.dispatcher.close()


def test_files_that_come_later_are_listed_and_can_be_used(client: TestClient, tmp_path: Path) -> None:
    body = {"width": 64, "height": 64, "steps": 1, "enable_hr": True, "hr_upscaler": "4x-Tiny"}
    assert client.post("/sdapi/v1/txt2img", json=body).status_code == 404
    assert client.get("/sdapi/v1/realesrgan-models").json() == []
    for folder, name in (
        ("models/ESRGAN", "4x-Tiny.pth"),
        ("models/RealESRGAN", "RealESRGAN_x2plus.pth"),
        ("elsewhere", "swin.pth"),
    ):
        save_esrgan(tmp_path / folder / name)
    listed = client.get("/sdapi/v1/upscalers").json()
    assert [row["name"] for row in listed] == ["None", "Lanczos", "Nearest", "4x-Tiny", "R-ESRGAN 2x+", "swin"]
    assert [row["scale"] for row in listed][3:] == [4, 2, 4]
    (real,) = client.get("/sdapi/v1/realesrgan-models").json()
    path = tmp_path / "models" / "RealESRGAN" / "RealESRGAN_x2plus.pth"
    assert real == {"name": "R-ESRGAN 2x+", "path": str(path), "scale": 2}
    reply = client.post("/sdapi/v1/txt2img", json=body)
    assert reply.status_code == 200
    assert "Hires upscaler: 4x-Tiny" in reply.json()["info"]
