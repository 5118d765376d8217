"""The memory timeline over HTTP."""

from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient

from modules.api.app import build_api
from modules.jobs.job import Job
from modules.memory.timeline import MemoryTimeline
from modules.processing.request.result import Result
from tests.fakes import FakeExecutor, fake_services


class Measuring(FakeExecutor):
    """Adds a timeline, as a real job has."""

    def run(self, job: Job) -> Result:
        with MemoryTimeline(torch.device("cpu")) as timeline:
            timeline.stage("denoise")
            result = super().run(job)
            return Result(images=result.images, info=result.info, memory=timeline.record())


def test_timeline_of_the_last_and_of_a_named_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.FakeExecutor", Measuring)
    services = fake_services(tmp_path)
    try:
        with TestClient(build_api(services)) as client:
            empty = client.get("/featherweight/v1/memory-timeline")
            assert (empty.status_code, empty.json()["stages"]) == (200, [])
            for name in ("task(a)", "task(b)"):
                body = {"steps": 2, "width": 64, "height": 64, "force_task_id": name}
                assert client.post("/sdapi/v1/txt2img", json=body).status_code == 200
            last = client.get("/featherweight/v1/memory-timeline").json()
            assert last["id_task"] == "task(b)" and last["device"] == "cpu"
            assert [stage["stage"] for stage in last["stages"]] == ["denoise"]
            named = client.get("/featherweight/v1/memory-timeline", params={"id_task": "task(a)"}).json()
            assert named["id_task"] == "task(a)"
            unknown = client.get("/featherweight/v1/memory-timeline", params={"id_task": "task(c)"})
            assert unknown.status_code == 404
            record = services.queue.store.get("task(a)")
            assert record is not None and record.outcome is not None
            assert set(record.outcome["memory"]) == {"denoise"}
    finally:
        services.dispatcher.close()
