import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from modules.api.app import build_api
from modules.services import Services
from tests.fakes import fake_services, whole_api
from tests.recordings import REFERENCE

OWN_KEYS = {"progress": {"stage"}, "sd-models": {"few_steps"}}
"""What our replies say beside the recorded ones, by list."""


def recorded(name: str) -> Any:
    return json.loads((REFERENCE / "get" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["samplers", "schedulers", "latent-upscale-modes"])
def test_lists_are_as_recorded(client: TestClient, name: str) -> None:
    assert client.get(f"/sdapi/v1/{name}").json() == recorded(name)


@pytest.mark.parametrize("name", ["sd-models", "upscalers", "memory", "progress", "embeddings", "scripts"])
def test_shapes_are_as_recorded(client: TestClient, name: str) -> None:
    ours, theirs = client.get(f"/sdapi/v1/{name}").json(), recorded(name)
    if isinstance(theirs, list):
        ours, theirs = ours[0], theirs[0]
    assert ours.keys() - OWN_KEYS.get(name, set()) == theirs.keys()


@pytest.mark.parametrize("name", ["sd-vae", "hypernetworks", "realesrgan-models", "extensions"])
def test_what_this_version_has_none_of_is_an_empty_list(client: TestClient, name: str) -> None:
    assert client.get(f"/sdapi/v1/{name}").json() == []


def test_the_loras_in_the_box_are_listed_with_any_data_folder(client: TestClient, services: Services) -> None:
    listed = client.get("/sdapi/v1/loras").json()
    assert {Path(entry["path"]) for entry in listed} == set((services.paths.root / "models/Lora").glob("*.safetensors"))


def test_styles_are_listed(client: TestClient, services: Services) -> None:
    services.paths.styles_files[0].write_text("name,prompt,negative_prompt\noil,oil painting,photo\n")
    listed = client.get("/sdapi/v1/prompt-styles").json()
    assert listed == [{"name": "oil", "prompt": "oil painting", "negative_prompt": "photo"}]
    assert listed[0].keys() == recorded("prompt-styles")[0].keys()


def test_options_have_the_recorded_keys_and_take_the_whole_body_back(client: TestClient) -> None:
    options = client.get("/sdapi/v1/options").json()
    assert set(recorded("options")) <= set(options)
    assert client.post("/sdapi/v1/options", json=options).status_code == 200
    assert client.get("/sdapi/v1/options").json() == options


def test_an_option_is_stored(client: TestClient, services: Services) -> None:
    assert client.post("/sdapi/v1/options", json={"jpeg_quality": 55}).status_code == 200
    assert services.settings.current["jpeg_quality"] == 55
    assert json.loads(services.paths.config_file.read_text())["jpeg_quality"] == 55


def test_a_job_keeps_the_settings_that_it_began_with(client: TestClient, services: Services) -> None:
    body = {"prompt": "slow", "steps": 8, "width": 64, "height": 64}
    with ThreadPoolExecutor(3) as callers:
        replies = [callers.submit(client.post, "/sdapi/v1/txt2img", json=body) for _ in range(3)]
        while services.queue.running_job() is None:
            time.sleep(0.01)
        first = services.queue.running_job()
        for value in (2, 3, 1, 2):
            assert client.post("/sdapi/v1/options", json={"CLIP_stop_at_last_layers": value}).status_code == 200
            assert client.get("/sdapi/v1/options").json()["CLIP_stop_at_last_layers"] == value
        assert first is not None and first.request.settings.stable_diffusion.CLIP_stop_at_last_layers == 1
        assert [reply.result().status_code for reply in replies] == [200] * 3
    info = json.loads(replies[0].result().json()["info"])
    assert "Clip skip" not in info["infotexts"][0]
    later = client.post("/sdapi/v1/txt2img", json={**body, "steps": 1}).json()
    assert "Clip skip: 2" in json.loads(later["info"])["infotexts"][0]
    client.post("/sdapi/v1/options", json={"CLIP_stop_at_last_layers": 1})


def test_a_wrong_option_changes_nothing_and_names_the_nearest(client: TestClient, services: Services) -> None:
    before = services.settings.current.to_json()
    reply = client.post("/sdapi/v1/options", json={"jpeg_quality": 12, "jpg_quality": 3})
    assert reply.status_code == 422 and "jpeg_quality" in reply.json()["errors"]
    assert services.settings.current.to_json() == before


def test_checkpoints_say_what_they_ask_for_if_they_need_few_steps(client: TestClient, services: Services) -> None:
    (services.paths.checkpoint_dirs[0] / "someXL_Lightning_4step.safetensors").write_bytes(b"x")
    assert client.post("/sdapi/v1/refresh-checkpoints").status_code == 200
    found = {model["model_name"]: model["few_steps"] for model in client.get("/sdapi/v1/sd-models").json()}
    asked = found.pop("someXL_Lightning_4step")
    assert (asked["steps"], asked["cfg_scale"], asked["sampler"]) == (4, 1.0, "Euler")
    assert set(found.values()) == {None}


def test_an_unknown_checkpoint_is_404(client: TestClient) -> None:
    reply = client.post("/sdapi/v1/options", json={"sd_model_checkpoint": "gone"})
    assert reply.status_code == 404 and "tiny-sd1.safetensors" in reply.json()["errors"]


def test_flags_are_shown_without_secrets(tmp_path: Path) -> None:
    services = fake_services(tmp_path, start=False, gradio_auth="me:secret")
    with TestClient(build_api(services)) as client:
        flags = client.get("/sdapi/v1/cmd-flags", auth=("me", "secret"))
    services.dispatcher.close()
    assert set(recorded("cmd-flags")) <= set(flags.json())
    assert "secret" not in flags.text


def test_new_checkpoints_are_found_by_refresh(client: TestClient, services: Services) -> None:
    (services.paths.checkpoint_dirs[0] / "new.safetensors").write_bytes(b"x")
    names = [model["model_name"] for model in client.get("/sdapi/v1/sd-models").json()]
    assert "new" not in names
    assert client.post("/sdapi/v1/refresh-checkpoints").status_code == 200
    assert "new" in [model["model_name"] for model in client.get("/sdapi/v1/sd-models").json()]


def test_the_model_can_be_unloaded(client: TestClient, services: Services) -> None:
    assert client.post("/sdapi/v1/unload-checkpoint").status_code == 200
    assert services.engine.status.state == "empty"


@pytest.mark.parametrize("allowed", [True, False])
def test_the_server_stops_only_with_its_flag(tmp_path: Path, allowed: bool) -> None:
    services = fake_services(tmp_path, start=False, api_server_stop=allowed)
    stopped: list[bool] = []
    with TestClient(build_api(services, on_stop=lambda: stopped.append(True))) as client:
        status = client.post("/sdapi/v1/server-stop").status_code
    services.dispatcher.close()
    assert (status, stopped) == ((200, [True]) if allowed else (404, []))


@pytest.fixture(scope="module")
def with_tags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server with the networks that the recordings were made with."""
    models = REFERENCE / "models"
    services = fake_services(
        tmp_path_factory.mktemp("data"),
        start=False,
        lora_dir=str(models / "Lora"),
        embeddings_dir=str(models / "embeddings"),
        hypernetwork_dir=str(models / "hypernetworks"),
    )
    with TestClient(whole_api(services)) as client:
        yield client
    services.dispatcher.close()


@pytest.mark.parametrize("name", ["loras", "hypernetworks"])
def test_adapters_are_listed_as_recorded(with_tags: TestClient, services: Services, name: str) -> None:
    ours = {entry["name"]: entry for entry in with_tags.get(f"/sdapi/v1/{name}").json()}
    theirs = {entry["name"]: entry for entry in recorded(name)}
    present = {path.stem for path in (REFERENCE / "models").rglob("tiny-*")}
    shipped = {path.stem for path in (services.paths.root / "models/Lora").glob("*.safetensors")}
    assert ours and set(ours) - shipped == set(theirs) & present
    ours = {name: entry for name, entry in ours.items() if name not in shipped}
    for key, entry in ours.items():
        assert entry.keys() >= theirs[key].keys()
        assert Path(entry["path"]).name == theirs[key]["path"].split("/")[-1]
        assert entry.get("alias") == theirs[key].get("alias")
        assert entry.get("metadata") == theirs[key].get("metadata")


def test_embeddings_are_listed_as_recorded(with_tags: TestClient) -> None:
    assert with_tags.get("/sdapi/v1/embeddings").json() == recorded("embeddings")


def test_scripts_are_described_in_the_recorded_shape(client: TestClient) -> None:
    ours, theirs = client.get("/sdapi/v1/script-info").json(), recorded("script-info")
    assert ours[0].keys() == theirs[0].keys()
    assert ours[0]["args"][0].keys() == theirs[0]["args"][0].keys()
    listed = client.get("/sdapi/v1/scripts").json()
    for tab in ("txt2img", "img2img"):
        names = [script["name"] for script in ours if script["is_img2img"] is (tab == "img2img")]
        assert sorted(names) == sorted(listed[tab])
    by_name = {script["name"]: script for script in theirs if not script["is_img2img"]}
    for script in ours:
        if script["name"] in by_name:
            assert len(script["args"]) == len(by_name[script["name"]]["args"])
