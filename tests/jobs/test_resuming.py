"""The queue and the recordings of long images: kept over a restart, used by the next try, deleted with the job."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from modules.assembly import build_services
from modules.flags.flags import Flags
from modules.jobs.job import Job, JobStatus
from modules.jobs.restart import Restart
from modules.processing.request.request import GenerationRequest
from modules.services import Services
from modules.settings.values import Settings
from tests.recordings import TINY

STEPS = 40


def services_on(data: Path) -> Services:
    services = build_services(Flags(data_dir=str(data), ckpt=str(TINY), use_cpu=("all",), no_hashing=True))
    Restart(services.queue).restore()
    services.dispatcher.start()
    return services


def wanted() -> GenerationRequest:
    settings = Settings().with_changes({"queue_resume_after": 0, "queue_resume_every": 0})
    return GenerationRequest(
        prompt="a cat", width=64, height=64, steps=STEPS, seed=3, subseed=0, sampler="Euler a", settings=settings
    )


def files(data: Path) -> list[Path]:
    return list((data / "resume").rglob("*.steps"))


def until_recorded(data: Path, job: Job) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and not (files(data) and job.progress().step > 3):
        time.sleep(0.005)


def test_a_restart_goes_on_inside_the_image(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    whole = services_on(tmp_path / "whole")
    job = whole.queue.submit(wanted())
    assert job.wait(120)
    expected = job.result().images[0].image.tobytes()
    whole.dispatcher.close()
    data = tmp_path / "data"
    first = services_on(data)
    cut = first.queue.submit(wanted())
    until_recorded(data, cut)
    first.dispatcher.close()
    assert cut.status is JobStatus.INTERRUPTED and len(files(data)) == 1
    second = services_on(data)
    again = second.queue.known.get(cut.task_id)
    assert again.wait(120)
    assert again.result().images[0].image.tobytes() == expected
    assert files(data) == []
    assert "were recorded by an earlier try; the image goes on from there" in caplog.text
    second.dispatcher.close()


def test_what_the_user_stops_leaves_no_recording(tmp_path: Path) -> None:
    services = services_on(tmp_path)
    job = services.queue.submit(replace(wanted(), steps=150))
    until_recorded(tmp_path, job)
    assert files(tmp_path)
    services.queue.interrupt(job.task_id)
    assert job.wait(60) and files(tmp_path) == []
    services.dispatcher.close()


def test_the_time_left_is_counted_from_where_a_job_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("modules.jobs.job.time.monotonic", lambda: now[0])
    job = Job("a", wanted())
    job.begin()
    job.plan(40)
    for done in (30, 31, 32):
        job.step(done)
        now[0] += 10.0
    assert job.progress().eta_s == pytest.approx(30.0 / 2 * 8)
