"""The reference UI's /internal and /sd_extra_networks routes that clients look for."""

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from safetensors.torch import save_file

from modules.settings.definitions import SETTINGS
from tests.fakes import fake_services, whole_api


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    folder = data / "models" / "Lora"
    folder.mkdir(parents=True)
    save_file({"a": torch.zeros(1)}, folder / "ink.safetensors", {"ss_network_dim": "8"})
    Image.new("RGB", (4, 4), "red").save(folder / "ink.png")
    (data / "secret.png").write_bytes((folder / "ink.png").read_bytes())
    return data


@pytest.fixture(scope="module")
def client(data: Path) -> Iterator[TestClient]:
    services = fake_services(data, api_auth="me:hidden-word")
    services.startup_s["all"] = 1.5
    client = TestClient(whole_api(services))
    client.auth = ("me", "hidden-word")
    yield client
    services.dispatcher.close()


def test_every_setting_is_hinted_with_its_label(client: TestClient) -> None:
    hints = client.get("/internal/quicksettings-hint").json()
    assert {hint["name"] for hint in hints} == set(SETTINGS)
    assert {"name": "samples_format", "label": SETTINGS.get("samples_format").label} in hints


def test_the_start_is_told_in_seconds(client: TestClient) -> None:
    assert client.get("/internal/profile-startup").json() == {"total": 1.5, "records": {"all": 1.5}}


@pytest.mark.parametrize(("path", "way"), [("sysinfo", "inline"), ("sysinfo-download", "attachment")])
def test_system_information_is_json_without_secrets(client: TestClient, path: str, way: str) -> None:
    reply = client.get(f"/internal/{path}")
    assert reply.headers["content-type"].startswith("text/plain")
    assert reply.headers["content-disposition"].startswith(f'{way}; filename="sysinfo-')
    facts = json.loads(reply.text)
    assert {"Platform", "Python", "Version", "Commandline", "RAM", "Config", "Startup", "Packages"} <= set(facts)
    assert "hidden-word" not in reply.text and facts["Commandline"]["api_auth"] == "(hidden)"
    bare = json.dumps({**facts, "Checksum": ""}, indent=4, ensure_ascii=False)
    assert facts["Checksum"] == hashlib.sha256(bare.encode()).hexdigest()


def test_cards_answer_in_the_reference_shapes(client: TestClient, data: Path) -> None:
    networks = "/sd_extra_networks"
    metadata = client.get(f"{networks}/metadata", params={"page": "lora", "item": "ink"}).json()
    assert json.loads(metadata["metadata"]) == {"ss_network_dim": "8"}
    assert client.get(f"{networks}/metadata", params={"page": "lora", "item": "gone"}).json() == {}
    card = client.get(f"{networks}/get-single-card", params={"page": "lora", "tabname": '"><i>', "name": "ink"}).json()
    assert 'data-name="ink"' in card["html"] and "<i>" not in card["html"]
    assert client.get(f"{networks}/get-single-card", params={"page": "gone", "name": "ink"}).json() == {}
    thumb = client.get(f"{networks}/thumb", params={"filename": str(data / "models" / "Lora" / "ink.png")})
    assert Image.open(io.BytesIO(thumb.content)).size == (4, 4)
    assert client.get(f"{networks}/cover-images", params={"page": "lora", "item": "ink"}).status_code == 404


@pytest.mark.parametrize("name", ["secret.png", "models/Lora/../../secret.png", "models/Lora/ink.safetensors", "a\0"])
def test_no_other_file_is_shown(client: TestClient, data: Path, name: str) -> None:
    reply = client.get("/sd_extra_networks/thumb", params={"filename": str(data / name)})
    assert reply.status_code == 404 and "There is no preview" in reply.json()["errors"]


def test_cards_are_for_users_where_there_are_any(client: TestClient) -> None:
    assert client.get("/sd_extra_networks/metadata", auth=("me", "wrong")).status_code == 401
