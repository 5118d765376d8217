"""Training over HTTP: tasks with their curves, pausing, the reference UI's routes for embeddings, refusals."""

import json
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from lib_training.config import config_of
from lib_training.tab import form_config, interrogated, look_at, replaced, save_captions
from lib_training.view import curves, training_view
from lib_training.work import TRAINING_KIND, TrainingWork
from modules.errors import InvalidValueError
from modules.jobs.job import JobStatus
from modules.services import Services
from tests.fakes import fake_services, whole_api
from tests.models.dit_files import write_split
from tests.recordings import TINY

PRESET_CHANGES = {
    "training": {"steps": 1},
    "data": {"resolution": 64},
    "model": {"device": "cpu", "storage": "fp32"},
    "output": {"sample_every": 0},
}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    yield services
    services.dispatcher.close()


@pytest.fixture(scope="module")
def client(services: Services) -> TestClient:
    return TestClient(whole_api(services), base_url="http://127.0.0.1", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for index in range(5):
        pixels = np.random.default_rng(index).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
        (folder / f"{index}.txt").write_text(f"toy, number {index}", encoding="utf-8")
    return folder


def body(images: Path, **sections: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "model": {"device": "cpu", "storage": "fp32"},
        "adapter": {"rank": 2},
        "data": {"folders": [str(images)], "resolution": 64},
        "training": {"steps": 3},
        "output": {"name": "toy", "validate_every": 2},
    }
    for name, section in sections.items():
        whole[name] = {**whole.get(name, {}), **section}
    return {"config": whole}


def ended(client: TestClient, task_id: str) -> dict[str, Any]:
    for _ in range(3000):  # of a tenth of a second: a busy machine is slow
        found: dict[str, Any] = client.get(f"/featherweight/v1/tasks/{task_id}").json()
        if JobStatus(found["status"]).is_final:
            return found
        time.sleep(0.1)
    raise AssertionError("the task does not end")


def until_it_steps(services: Services, task_id: str) -> None:
    task = services.queue.known.task(task_id)
    while not task.state.phase.startswith("step ") and not task.state.status.is_final:
        time.sleep(0.02)


def test_a_training_is_a_task_with_its_curves(client: TestClient, services: Services, images: Path) -> None:
    reply = client.post("/featherweight/v1/train", json=body(images))
    assert reply.status_code == 200, reply.text
    task = ended(client, reply.json()["id"])
    assert (task["status"], task["error"]) == ("done", None)
    outcome = task["outcome"]
    assert outcome["files"] == ["toy.safetensors"]
    assert len(outcome["loss"]) == 3
    assert outcome["validation"][0][0] == 0
    assert (services.paths.lora_dirs[0] / "toy.safetensors").is_file()
    assert any(item["name"] == "toy" for item in client.get("/sdapi/v1/loras").json())
    shown = training_view(services.queue.known.tasks(TRAINING_KIND)[0].state)
    assert "toy.safetensors is ready" in shown
    assert "data-plot=" in shown


def test_a_transformer_of_a_flow_is_trained_over_http(
    client: TestClient, images: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkpoint = write_split(tmp_path_factory.mktemp("flow"), "zimage-turbo-cfg1")
    model = {"checkpoint": str(checkpoint), "storage": "fp8_e4m3fn_row"}
    reply = client.post("/featherweight/v1/train", json=body(images, model=model, output={"name": "flow"}))
    assert reply.status_code == 200, reply.text
    task = ended(client, reply.json()["id"])
    assert (task["status"], task["error"]) == ("done", None)
    assert task["outcome"]["files"] == ["flow.safetensors"]


def test_cancelling_pauses_and_the_same_request_goes_on(client: TestClient, services: Services, images: Path) -> None:
    wanted = body(images, training={"steps": 150}, output={"name": "paused"})
    task_id = client.post("/featherweight/v1/train", json=wanted).json()["id"]
    until_it_steps(services, task_id)
    client.post(f"/featherweight/v1/tasks/{task_id}/cancel")
    paused = ended(client, task_id)
    assert paused["status"] == "interrupted"
    assert (services.paths.lora_dirs[0] / "paused.training").is_file()
    assert "Paused at step" in training_view(services.queue.known.task(task_id).state)
    again = client.post("/featherweight/v1/train", json=wanted).json()["id"]
    until_it_steps(services, again)
    client.post(f"/featherweight/v1/tasks/{again}/cancel")
    notices = (ended(client, again)["outcome"] or {"notices": []})["notices"]
    assert any(notice.startswith("Resumed at step") for notice in notices)


def test_a_preset_needs_a_folder_and_a_name(client: TestClient, services: Services, images: Path) -> None:
    reply = client.post(
        "/featherweight/v1/train",
        json={"preset": "style", "folder": str(images), "name": "s", "config": PRESET_CHANGES},
    )
    assert reply.status_code == 200
    task = ended(client, reply.json()["id"])
    assert task["status"] == "done", task
    assert task["outcome"]["name"] == "s"
    assert client.post("/featherweight/v1/train", json={"preset": "styl"}).status_code == 404
    values = {"preset": "concept", "folder": str(images), "name": "c", "trigger": "zorp", "budget": "4 GB"}
    empty = dict.fromkeys(
        ("type", "rank", "text_rank", "steps", "batch", "learning_rate", "optimizer", "resolution", "shift")
    )
    config = form_config(services, {**values, **empty, "rank": 4, "shift": 2.5})
    assert (config.adapter.rank, config.memory.budget_gb, config.output.trigger) == (4, 4.0, "zorp")
    assert config.loss.shift == 2.5 and form_config(services, {**values, **empty}).loss.shift is None
    with pytest.raises(InvalidValueError, match="no images in /nowhere"):
        form_config(services, {**values, **empty, "folder": "/nowhere"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adapter": {"rnk": 1}}, "Did you mean 'rank'"),
        ({"output": {"name": ""}}, "output.name is missing"),
        ({"data": {"folders": []}}, "Name one in data.folders"),
        ({"model": {"checkpoint": "gone"}}, "gone"),
    ],
)
def test_what_is_wrong_is_said_at_once(client: TestClient, images: Path, change: dict[str, Any], message: str) -> None:
    reply = client.post("/featherweight/v1/train", json=body(images, **change))
    assert reply.status_code in (404, 422)
    assert message in reply.json()["errors"]


def test_a_learning_rate_is_found(client: TestClient, images: Path) -> None:
    reply = client.post("/featherweight/v1/train/learning-rate", json=body(images))
    task = ended(client, reply.json()["id"])
    assert task["status"] == "done", task
    assert 1e-6 < task["outcome"]["rate"] < 0.1
    assert "the loss was lowest" in task["outcome"]["said"]


def test_embeddings_are_created_and_trained_by_the_reference_uis_routes(
    client: TestClient, services: Services, images: Path
) -> None:
    new = {"name": "zorp", "num_vectors_per_token": 2, "init_text": "red"}
    reply = client.post("/sdapi/v1/create/embedding", json=new)
    assert reply.status_code == 200, reply.text
    assert reply.json()["info"].endswith("zorp.safetensors")
    assert client.post("/sdapi/v1/create/embedding", json=new).status_code == 422
    assert client.post("/sdapi/v1/create/embedding", json={**new, "name": "../x"}).status_code == 422
    wanted = {"embedding_name": "zorp", "data_root": str(images), "steps": 2, "learn_rate": "0.005:100, 1e-3"}
    reply = client.post("/sdapi/v1/train/embedding", json={**wanted, "training_width": 64})
    assert reply.status_code == 200, reply.text
    assert "zorp.safetensors" in reply.json()["info"]
    assert client.post("/sdapi/v1/train/embedding", json={**wanted, "learn_rate": "x"}).status_code == 422


@pytest.mark.parametrize("path", ["create/hypernetwork", "train/hypernetwork"])
def test_hypernetworks_are_refused_with_a_sentence(client: TestClient, path: str) -> None:
    reply = client.post(f"/sdapi/v1/{path}", json={})
    assert reply.status_code == 422
    assert "Train one with" in reply.json()["errors"]


def test_where_others_reach_the_server_paths_are_refused(services: Services, images: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    work = TrainingWork(replace(services, history_folders=(tmp_path,)))
    with pytest.raises(InvalidValueError, match="outside of the folders"):
        work.check(config_of(body(images, model={"checkpoint": TINY.name})["config"]))
    inside = {"data": {"folders": [str(tmp_path)]}, "model": {"checkpoint": TINY.name}}
    with pytest.raises(InvalidValueError, match="it may be no path"):
        work.check(config_of(body(images, **inside, output={"name": "/etc/x"})["config"]))
    work.check(config_of(body(images, **inside)["config"]))


def test_captions_are_edited(services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(2):
        pixels = np.random.default_rng(index).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    (tmp_path / "0.txt").write_text("A Cat, red\na cat", encoding="utf-8")
    said, rows, thumbnails = look_at(services, str(tmp_path))
    assert "Without a caption (1): 1.png" in said
    assert rows == [["0.png", "A Cat, red | a cat"], ["1.png", ""]]
    assert len(thumbnails) == 2
    rows = replaced(rows, "a cat", "a dog")
    monkeypatch.setattr(type(services.captioners), "caption", lambda *given: "a bird")
    rows = interrogated(services, str(tmp_path), rows, "clip")
    assert save_captions(services, str(tmp_path), rows) == 2
    assert (tmp_path / "0.txt").read_text(encoding="utf-8") == "a dog, red\na dog\n"
    assert (tmp_path / "1.txt").read_text(encoding="utf-8") == "a bird\n"
    with pytest.raises(InvalidValueError, match="no longer in the folder"):
        save_captions(services, str(tmp_path), [["../../etc/passwd", "x"]])


def test_curves_say_what_they_show() -> None:
    assert curves({"loss": [], "validation": []}) == ""
    drawn = curves({"loss": [[1, 0.5], [2, 0.25]], "validation": [[0, 0.6], [2, 0.4]]}, best_step=2)
    spec = json.loads(unescape(drawn.partition('data-plot="')[2].partition('"')[0]))
    assert [line["points"] for line in spec["lines"]] == [[[1, 0.5], [2, 0.25]], [[0, 0.6], [2, 0.4]]]
    assert spec["label"] == "Loss over the steps: loss (smoothed): 0.2500, held-out images: 0.4000"
    assert spec["marks"] == [{"name": "best: step 2", "x": 2}]


def test_a_folder_that_is_none_is_refused_before_the_job(client: TestClient, services: Services) -> None:
    before = len(services.queue.known.tasks())
    for path, sent in (
        ("/sdapi/v1/train/embedding", {"data_root": "/nowhere", "embedding_name": "mystyle", "steps": 1}),
        ("/featherweight/v1/train", body(Path("/nowhere"))),
        ("/featherweight/v1/train/learning-rate", body(Path("/nowhere"))),
    ):
        reply = client.post(path, json=sent)
        assert reply.status_code == 422 and "/nowhere is no folder" in reply.json()["errors"], reply.text
    assert len(services.queue.known.tasks()) == before
