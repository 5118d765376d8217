"""The queue over HTTP: our routes, and those of the Agent Scheduler extension."""

import time
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from fastapi.testclient import TestClient

from modules.api.generation import generation
from modules.api.jobs.queue import worker_replies
from modules.jobs.workers.executor import WorkerFacts, WorkerState
from modules.jobs.workers.group import Workers
from modules.services import Services

OURS = "/featherweight/v1/queue"
THEIRS = "/agent-scheduler/v1"
SMALL = {"width": 64, "height": 64, "steps": 1}


@pytest.fixture(autouse=True)
def paused(services: Services) -> Iterator[None]:
    services.queue.pause()
    yield
    services.queue.clear()
    services.queue.pause(False)


def submit(client: TestClient, prompt: str, **fields: object) -> str:
    reply = client.post(f"{THEIRS}/queue/txt2img", json={**SMALL, "prompt": prompt, **fields})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["task_id"])


def line(client: TestClient) -> list[str]:
    return [job["title"] for job in client.get(OURS).json()["waiting"]]


def ended(client: TestClient, task_id: str) -> dict[str, Any]:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        job: dict[str, Any] = client.get(f"{OURS}/job", params={"task_id": task_id}).json()
        if job["status"] in ("done", "failed"):
            return job
        time.sleep(0.02)
    raise AssertionError("it did not end")


def test_waiting_jobs_are_ordered_changed_and_cancelled(client: TestClient) -> None:
    a, b, c = (submit(client, name) for name in "abc")
    client.post(f"{OURS}/move", json={"task_id": c, "before": a})
    assert line(client) == ["c", "a", "b"]
    client.post(f"{OURS}/next", json={"task_id": b})
    assert line(client) == ["b", "c", "a"]
    client.post(f"{OURS}/move", json={"task_id": b})
    changed = client.post(f"{OURS}/change", json={"task_id": a, "parameters": {"prompt": "other", "steps": 2}})
    assert changed.json()["title"] == "other"
    job = client.get(f"{OURS}/job", params={"task_id": a}).json()
    assert (job["parameters"]["steps"], job["parameters"]["width"]) == (2, 64)
    assert job["infotext"].startswith("other\nSteps: 2, Sampler: ")
    client.post(f"{OURS}/rename", json={"task_id": c, "title": "named"})
    client.post(f"{OURS}/cancel", json={"task_id": b})
    assert line(client) == ["named", "other"]
    again = client.post(f"{OURS}/again", json={"task_id": a, "seed": 77}).json()["task_id"]
    assert client.get(f"{OURS}/job", params={"task_id": again}).json()["parameters"]["seed"] == 77
    assert client.post(f"{OURS}/clear").json() == {"count": 3}


def test_two_browsers_move_one_job(client: TestClient) -> None:
    left, right = (submit(client, name) for name in ("left", "right"))
    for _ in range(2):
        assert client.post(f"{OURS}/move", json={"task_id": right, "before": left}).status_code == 200
    assert line(client) == ["right", "left"]
    assert client.post(f"{OURS}/move", json={"task_id": left, "before": left}).status_code in (200, 422)
    assert client.post(f"{OURS}/cancel", json={"task_id": right}).status_code == 200
    assert client.post(f"{OURS}/move", json={"task_id": right}).status_code == 404
    assert client.post(f"{OURS}/move", json={"task_id": left, "before": right}).status_code in (200, 404), "it has gone"
    client.post(f"{OURS}/cancel", json={"task_id": left})


@pytest.mark.parametrize(
    ("route", "body", "status", "text"),
    [
        ("change", {"parameters": {"steps": "many"}}, 422, "steps is 'many'"),
        ("change", {"parameters": {"width": 7}}, 422, "allowed is 16"),
        ("change", {"parameters": {"stepz": 5}}, 404, "Did you mean 'steps'"),
        ("change", {"parameters": {"checkpoint": "nothing"}}, 404, "nothing"),
        ("change", {"parameters": {"hr_scale": 2}}, 422, "no second pass"),
        ("next", {"task_id": "nobody"}, 404, "No waiting job"),
        ("again", {"task_id": "nobody"}, 404, "No job has"),
        ("remove", {}, 422, "cancel it first"),
        ("when-done", {"action": "command"}, 422, "queue_done_command"),
        ("when-done", {"action": "explode"}, 422, "action"),
    ],
)
def test_what_cannot_be_done_is_said(
    client: TestClient, route: str, body: dict[str, object], status: int, text: str
) -> None:
    task_id = submit(client, "a")
    reply = client.post(f"{OURS}/{route}", json={"task_id": task_id, **body})
    assert reply.status_code == status and text in reply.json()["errors"]


def test_pausing_and_what_happens_when_done(client: TestClient, services: Services) -> None:
    client.post(f"{OURS}/when-done", json={"action": "unload"})
    task_id = submit(client, "runs")
    state = client.get(OURS).json()
    assert (state["paused"], state["when_done"], state["waiting_total"], state["running"]) == (True, "unload", 1, None)
    client.post(f"{OURS}/resume")
    assert ended(client, task_id)["status"] == "done"
    assert client.get(OURS).json()["ended"][0]["title"] == "runs"
    client.post(f"{OURS}/remove", json={"task_id": task_id})
    assert client.get(f"{OURS}/job", params={"task_id": task_id}).status_code == 404


# -- Agent Scheduler ---------------------------------------------------------------------------------------------------


def test_a_task_of_agent_scheduler_from_submit_to_results(client: TestClient, services: Services) -> None:
    task_id = submit(client, "a circle", seed=5, checkpoint=services.catalogue.entries[0].title, callback_url=None)
    queue = client.get(f"{THEIRS}/queue").json()
    assert queue["paused"] and queue["total_pending_tasks"] == 1 and queue["current_task_id"] is None
    (pending,) = queue["pending_tasks"]
    assert (pending["id"], pending["status"], pending["type"], pending["position"]) == (
        task_id,
        "pending",
        "txt2img",
        1,
    )
    assert (pending["params"]["prompt"], pending["params"]["seed"]) == ("a circle", 5)
    assert client.get(f"{THEIRS}/task/{task_id}/position").json() == {"status": "pending", "position": 1}
    changed = client.put(f"{THEIRS}/task/{task_id}", json={"name": "named", "params": {"steps": 2}})
    assert changed.json()["success"]
    for action in ("bookmark", "unbookmark", "bookmark", "rename?name=again", "run"):
        assert client.post(f"{THEIRS}/task/{task_id}/{action}").json()["success"], action
    assert client.post(f"{THEIRS}/queue/resume").json()["success"]
    ended(client, task_id)
    task = client.get(f"{THEIRS}/task/{task_id}").json()["data"]
    assert (task["name"], task["status"], task["bookmarked"]) == ("again", "done", True)
    assert client.get(f"{THEIRS}/task/{task_id}/results").json() == {"success": True, "data": []}  # fakes save nothing
    assert client.post(f"{THEIRS}/history/clear").json()["success"]
    assert client.get(f"{THEIRS}/history").json()["total"] == 1, "what is bookmarked stays"
    assert client.delete(f"{THEIRS}/task/{task_id}").json()["success"]
    assert client.get(f"{THEIRS}/history", params={"status": "done"}).json() == {"total": 0, "tasks": []}


def test_tasks_of_agent_scheduler_are_moved_exported_and_imported(client: TestClient) -> None:
    a, b, c = (submit(client, name) for name in "abc")
    client.post(f"{THEIRS}/task/{c}/move/{b}")
    client.post(f"{THEIRS}/task/{a}/move/bottom")
    assert line(client) == ["c", "b", "a"]
    client.post(f"{THEIRS}/task/{a}/move/top")
    assert line(client) == ["a", "c", "b"]
    exported = client.get(f"{THEIRS}/export").text
    assert client.post(f"{THEIRS}/queue/clear").json()["success"]
    assert line(client) == []
    imported = client.post(f"{THEIRS}/import", json={"content": exported}).json()
    assert len(imported["task_ids"]) == 3 and line(client) == ["a", "c", "b"]
    assert client.post(f"{THEIRS}/import", json={"content": "nonsense"}).status_code == 422
    assert "Euler" in client.get(f"{THEIRS}/samplers").json()
    assert client.get(f"{THEIRS}/sd-models").json()


def test_an_image_is_sent_as_agent_scheduler_sends_it(client: TestClient, tmp_path: Path, services: Services) -> None:
    from PIL import Image

    from modules.images.encode import to_base64

    body = {**SMALL, "prompt": "x", "init_images": [to_base64(Image.new("RGB", (64, 64)))]}
    task_id = client.post(f"{THEIRS}/queue/img2img", json=body).json()["task_id"]
    assert client.get(f"{THEIRS}/task/{task_id}").json()["data"]["type"] == "img2img"
    path = tmp_path / "made.png"
    Image.new("RGB", (8, 8)).save(path)
    outcome = {"images": [{"path": str(path), "role": "sample", "seed": 1, "subseed": 1, "infotext": "how"}]}
    services.queue.interrupt(task_id)
    from modules.jobs.job import JobStatus

    services.queue.store.ended(task_id, JobStatus.DONE, None, outcome)
    (found,) = client.get(f"{THEIRS}/task/{task_id}/results").json()["data"]
    assert found["image"].startswith("data:image/png;base64,") and found["infotext"] == "how"
    archive = ZipFile(BytesIO(client.get(f"{THEIRS}/task/{task_id}/results?zip=true").content))
    assert archive.namelist() == ["0000-made.png"]
    assert client.get(f"{OURS}/image", params={"task_id": task_id}).content == path.read_bytes()


def test_failed_tasks_are_put_in_line_again(client: TestClient, services: Services) -> None:
    from modules.jobs.job import JobStatus

    task_id = submit(client, "failed")
    services.queue.interrupt(task_id)
    services.queue.store.ended(task_id, JobStatus.FAILED, "no memory")
    assert client.get(OURS).json()["failed_total"] == 1
    assert client.post(f"{THEIRS}/task/requeue-failed").json()["success"]
    assert client.get(OURS).json()["failed_total"] == 0 and line(client) == ["failed"]
    refused = client.post(f"{THEIRS}/queue/txt2img", json={**SMALL, "callback_url": "http://10.0.0.1/"})
    assert refused.status_code == 422 and "calls nobody" in refused.json()["errors"]


def test_workers_are_listed_with_what_they_do(services: Services, client: TestClient) -> None:
    assert client.get("/featherweight/v1/workers").json() == []
    assert client.get("/featherweight/v1/queue").json()["workers"] == []

    class Known:
        facts = WorkerFacts(
            "worker-1", "process 1, CPU", WorkerState.WAITING, restarts=2, message="The worker crashed."
        )

    shown = worker_replies(replace(services, workers=Workers(others=[Known()])))  # type: ignore[list-item]
    assert shown[0].model_dump() | {"jobs": 0} == {
        "name": "worker-1",
        "place": "process 1, CPU",
        "state": "waiting",
        "task_id": "",
        "title": "",
        "model": "",
        "restarts": 2,
        "jobs": 0,
        "message": "The worker crashed.",
    }


def test_a_client_whose_job_stands_in_a_paused_line_is_told_so(
    client: TestClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "PAUSED_S", 0.2)
    reply = client.post("/sdapi/v1/txt2img", json=SMALL)
    assert reply.status_code == 503
    assert "The queue is paused" in reply.json()["errors"] and "taken out of the line" in reply.json()["errors"]
    assert services.queue.waiting_count() == 0
    kept = client.post("/sdapi/v1/txt2img", json={**SMALL, "force_task_id": "task(mine)"})
    assert kept.status_code == 503 and "is still in line, as task(mine)" in kept.json()["errors"]
    assert services.queue.waiting_count() == 1
    assert "The queue is paused" in client.get("/sdapi/v1/progress").json()["textinfo"]
