"""POST /featherweight/v1/import-folder: the running program takes over a folder."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from lib_takeover.routes import taken_over
from modules.errors import InvalidValueError
from modules.services import Services


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    (folder / "models" / "Lora").mkdir(parents=True)
    (folder / "models" / "Lora" / "l.safetensors").touch()
    (folder / "config.json").write_text(json.dumps({"CLIP_stop_at_last_layers": 2}), encoding="utf-8")
    (folder / "outputs").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "outputs" / "1.png")
    return folder


def test_the_running_program_takes_over(client: TestClient, services: Services, theirs: Path) -> None:
    reply = client.post("/featherweight/v1/import-folder", json={"folder": str(theirs)})
    assert reply.status_code == 200
    taken = "\n".join(reply.json()["taken"])
    assert str(theirs / "models" / "Lora") in taken and "1 setting: CLIP_stop_at_last_layers" in taken
    assert services.settings.current["CLIP_stop_at_last_layers"] == 2
    assert services.paths.extra_folders_file.is_file()
    assert services.history.importer.wait(120)
    assert services.history.history.known(theirs / "outputs" / "1.png") is not None
    again = client.post("/featherweight/v1/import-folder", json={"folder": str(theirs)}).json()
    assert again["taken"] == []


def test_a_folder_that_is_none_is_refused(client: TestClient, tmp_path: Path) -> None:
    reply = client.post("/featherweight/v1/import-folder", json={"folder": str(tmp_path / "gone")})
    assert reply.status_code == 422 and "not a folder on this machine" in reply.json()["errors"]


def test_a_server_that_others_reach_reads_its_own_folders_only(services: Services, theirs: Path) -> None:
    with pytest.raises(InvalidValueError, match="may not be imported"):
        taken_over(replace(services, history_folders=(services.paths.data_dir,)), str(theirs))
    config = {"outdir_samples": str(theirs.parent / "secret")}
    (theirs.parent / "secret").mkdir()
    (theirs / "config.json").write_text(json.dumps(config), encoding="utf-8")
    report = taken_over(replace(services, history_folders=(theirs,)), str(theirs))
    assert any("secret" in line and "may not be imported" in line for line in report.without)
