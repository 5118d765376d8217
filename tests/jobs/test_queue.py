import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from modules.errors import BusyError, FeatherweightError, Interrupted, InvalidValueError, UnknownNameError
from modules.jobs.job import Job, JobStatus
from modules.jobs.queue import JobQueue
from modules.jobs.store import JobStore
from modules.processing.record.result import GeneratedImage, GenerationInfo, Result
from modules.processing.request import GenerationRequest, request_from_json


def result_of(job: Job, interrupted: bool = False) -> Result:
    request = job.request
    info = GenerationInfo(
        prompts=(request.prompt,),
        negative_prompts=("",),
        seeds=(request.seed,),
        subseeds=(request.subseed,),
        subseed_strength=0.0,
        width=8,
        height=8,
        sampler="Euler",
        scheduler="Automatic",
        cfg_scale=7.0,
        steps=request.steps,
        batch_size=1,
        checkpoint_name="x",
        checkpoint_hash="",
        vae_name=None,
        vae_hash=None,
        seed_resize_from_width=0,
        seed_resize_from_height=0,
        denoising_strength=None,
        extra_params={},
        infotexts=("x",),
        styles=(),
        job_timestamp="",
        clip_skip=1,
        version="",
    )
    image = GeneratedImage(Image.new("RGB", (8, 8)), "x", request.seed, request.subseed)
    return Result(images=(image,), info=info, interrupted=interrupted)


class Stepping:
    """An executor that steps until `go` allows it to end."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.order: list[str] = []
        self.closed = False

    def run(self, job: Job) -> Result:
        self.order.append(job.task_id)
        if job.request.prompt == "fail":
            raise InvalidValueError("a sentence")
        if job.request.prompt == "crash":
            raise RuntimeError("boom")
        job.plan(job.request.steps)
        try:
            for step in range(job.request.steps):
                job.check()
                job.step(step + 1)
                if not self.go.is_set():
                    self.go.wait(0.02)
            self.go.wait(5)
            job.check()
        except Interrupted:
            return result_of(job, interrupted=True)
        return result_of(job)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def executor() -> Stepping:
    return Stepping()


@pytest.fixture
def queue(executor: Stepping, tmp_path: Path) -> Iterator[JobQueue]:
    queue = JobQueue(executor, JobStore(tmp_path / "jobs.sqlite"))
    queue.start()
    yield queue
    executor.go.set()
    queue.close()


def test_jobs_run_in_order_and_know_their_place(queue: JobQueue, executor: Stepping) -> None:
    jobs = [queue.submit(GenerationRequest(), task_id=name) for name in ("a", "b", "c")]
    while queue.running is None:
        time.sleep(0.01)
    assert [queue.progress(name).position for name in ("a", "b", "c")] == [0, 1, 2]
    executor.go.set()
    assert all(job.wait(5) for job in jobs)
    assert executor.order == ["a", "b", "c"]
    assert jobs[0].result().samples
    assert queue.progress("a").fraction == 1.0


def test_seeds_are_fixed_and_recorded_before_the_job_runs(queue: JobQueue) -> None:
    queue.submit(GenerationRequest(), task_id="blocking")
    job = queue.submit(GenerationRequest(prompt="x"))
    record = queue.store.get(job.task_id)
    assert job.request.seed >= 0 and job.request.subseed >= 0
    assert record is not None and record.status is JobStatus.QUEUED
    assert request_from_json(record.request) == job.request


def test_an_interrupt_ends_the_running_job_within_a_step(queue: JobQueue) -> None:
    job = queue.submit(GenerationRequest(steps=1000))
    while job.progress().status is not JobStatus.RUNNING:
        time.sleep(0.01)
    queue.interrupt()
    assert job.wait(2)
    assert job.status is JobStatus.INTERRUPTED
    assert len(job.result().samples) == 1


def test_a_waiting_job_is_taken_out_of_the_line(queue: JobQueue, executor: Stepping) -> None:
    first = queue.submit(GenerationRequest())
    second = queue.submit(GenerationRequest())
    queue.interrupt(second.task_id)
    assert second.wait(1)
    with pytest.raises(Interrupted, match="before it started"):
        second.result()
    executor.go.set()
    assert first.wait(5)
    assert executor.order == [first.task_id]


def test_errors_for_the_user_and_our_own_end_the_job_but_not_the_queue(queue: JobQueue, executor: Stepping) -> None:
    executor.go.set()
    failed, crashed = queue.submit(GenerationRequest(prompt="fail")), queue.submit(GenerationRequest(prompt="crash"))
    fine = queue.submit(GenerationRequest())
    assert all(job.wait(5) for job in (failed, crashed, fine))
    with pytest.raises(InvalidValueError, match="a sentence"):
        failed.result()
    with pytest.raises(FeatherweightError, match="internal error RuntimeError: boom"):
        crashed.result()
    assert fine.result().samples
    record = queue.store.get(failed.task_id)
    assert record is not None and (record.status, record.error) == (JobStatus.FAILED, "a sentence")


def test_a_task_id_names_the_newest_job_that_was_given_it(queue: JobQueue, executor: Stepping) -> None:
    first = queue.submit(GenerationRequest(prompt="first"), task_id="x")
    with pytest.raises(InvalidValueError, match="task id 'x' waits or runs"):
        queue.submit(GenerationRequest(), task_id="x")
    executor.go.set()
    assert first.wait(5)
    second = queue.submit(GenerationRequest(prompt="second"), task_id="x")
    assert second.wait(5) and queue.get("x") is second
    prompts = {record.task_id: record.request["prompt"] for record in queue.store.recent()}
    assert prompts == {"x": "second", "x~1": "first"}  # the older record is kept


def test_an_unknown_task_is_an_error(queue: JobQueue) -> None:
    with pytest.raises(UnknownNameError, match="no-such"):
        queue.get("no-such")


def test_a_task_id_may_be_used_again_when_its_job_has_ended(queue: JobQueue, executor: Stepping) -> None:
    executor.go.set()
    first = queue.submit(GenerationRequest(prompt="first"), task_id="x")
    assert first.wait(5)
    second = queue.submit(GenerationRequest(prompt="second"), task_id="x")
    assert second.wait(5)
    assert queue.get("x") is second
    assert [record.title for record in queue.store.recent()] == ["second", "first"]


def crashed(path: Path, executor: Stepping) -> str:
    """A queue that is left with a running and a waiting job, as a killed process leaves it; the running one's id."""
    queue = JobQueue(executor, JobStore(path))
    queue.start()
    running = queue.submit(GenerationRequest(prompt="running", seed=7), task_id="running")
    queue.submit(GenerationRequest(prompt="waiting"), task_id="waiting")
    while running.status is not JobStatus.RUNNING:
        time.sleep(0.01)
    running.finished_image(GeneratedImage(Image.new("RGB", (8, 8)), "x", 7, 1, path=Path("a.png")))
    return running.task_id


def test_after_a_crash_what_is_unfinished_is_named_and_can_be_repeated(tmp_path: Path, executor: Stepping) -> None:
    crashed(tmp_path / "jobs.sqlite", executor)
    queue = JobQueue(Stepping(), JobStore(tmp_path / "jobs.sqlite"))
    left = queue.store.mark_left_over()
    assert [(record.task_id, record.status) for record in left] == [
        ("running", JobStatus.INTERRUPTED),
        ("waiting", JobStatus.INTERRUPTED),
    ]
    assert left[0].error == "The server ended before this was finished."
    assert left[0].outcome is not None and left[0].outcome["images"][0]["path"] == "a.png"
    again = queue.repeat("running")
    assert isinstance(again, Job) and (again.request.prompt, again.request.seed) == ("running", 7)
    queue.dismiss("waiting")
    assert queue.unfinished() == []
    with pytest.raises(UnknownNameError, match="repeated or dismissed"):
        queue.repeat("running")
    queue.close()
    executor.go.set()


def test_what_a_shutdown_cuts_off_is_unfinished_too(tmp_path: Path, executor: Stepping) -> None:
    queue = JobQueue(executor, JobStore(tmp_path / "jobs.sqlite"))
    queue.start()
    running = queue.submit(GenerationRequest(steps=1000), task_id="running")
    waiting = queue.submit(GenerationRequest(), task_id="waiting")
    while running.status is not JobStatus.RUNNING:
        time.sleep(0.01)
    queue.close()
    queue.close()  # twice does no harm
    assert running.wait(1) and len(running.result().samples) == 1
    with pytest.raises(Interrupted, match="stopped before the job started"):
        waiting.result()
    store = JobStore(tmp_path / "jobs.sqlite")
    assert [record.task_id for record in store.mark_left_over()] == ["running", "waiting"]
    store.close()


def test_the_line_is_bounded_and_can_be_cleared(executor: Stepping) -> None:
    queue = JobQueue(executor, JobStore(None), max_waiting=lambda: 2)
    jobs = [queue.submit(GenerationRequest()) for _ in range(2)]
    with pytest.raises(BusyError, match=r"2 jobs wait in line, and 2 are allowed \(setting queue_limit\)"):
        queue.submit(GenerationRequest())
    assert queue.clear() == 2
    assert all(job.status is JobStatus.INTERRUPTED for job in jobs)
    record = queue.store.get(jobs[0].task_id)
    assert record is not None and record.status is JobStatus.INTERRUPTED
    queue.submit(GenerationRequest())
    queue.close()


@pytest.mark.parametrize("task_id", ["a\0b", "\ud800"])
def test_a_task_id_that_no_record_can_hold_is_refused(queue: JobQueue, task_id: str) -> None:
    with pytest.raises(InvalidValueError, match="leave it out"):
        queue.submit(GenerationRequest(), task_id=task_id)


def test_after_closing_no_job_is_taken(executor: Stepping, tmp_path: Path) -> None:
    queue = JobQueue(executor, JobStore(tmp_path / "jobs.sqlite"))
    queue.start()
    queue.close()
    assert executor.closed
    with pytest.raises(Interrupted, match="shutting down"):
        queue.submit(GenerationRequest())
    with pytest.raises(sqlite3.ProgrammingError):
        queue.store.recent()


def stopped(job: Job) -> bool:
    try:
        job.check()
    except Interrupted:
        return True
    return False


def test_a_gentle_interrupt_waits_for_the_end_of_the_batch() -> None:
    job = Job("a", GenerationRequest(batch_count=3, batch_size=2, seed=1))
    image = GeneratedImage(Image.new("RGB", (8, 8)), "x", 1, 1)
    job.interrupt(after_batch=True)
    assert job.is_stopping_after_batch and not stopped(job)
    job.finished_image(image)
    assert not stopped(job)
    job.finished_image(image)
    assert stopped(job) and not job.is_stopping_after_batch


def test_a_second_gentle_interrupt_stops_at_once() -> None:
    job = Job("a", GenerationRequest(batch_count=2, seed=1))
    job.interrupt(after_batch=True)
    job.interrupt(after_batch=True)
    assert stopped(job)


def test_a_gentle_interrupt_of_a_single_batch_stops_at_once() -> None:
    job = Job("a", GenerationRequest(batch_size=4, seed=1))
    job.interrupt(after_batch=True)
    assert stopped(job)
    plot = Job("b", GenerationRequest(script="X/Y/Z plot", seed=1))
    plot.interrupt(after_batch=True)
    assert not stopped(plot)
