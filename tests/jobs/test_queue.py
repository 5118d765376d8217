import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.errors import BusyError, FeatherweightError, Interrupted, InvalidValueError, UnknownNameError
from modules.jobs.job import Job, JobStatus
from modules.jobs.line import Models, QueueOptions
from modules.jobs.store import JobStore
from modules.jobs.when_done import WhenDone
from modules.processing.request.request import GenerationRequest, request_from_json
from modules.processing.request.result import GeneratedImage, GenerationInfo, Result
from modules.processing.request.source_images import FromImage, SourceImage
from modules.system.atomic_files import fingerprint_of
from tests.queues import JobQueue


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


def test_previews_come_every_few_steps_also_behind_the_planned_ones() -> None:
    job = Job("a", GenerationRequest(seed=1, subseed=1), preview_every=3)
    assert [step for step in range(12) if job.wants_preview(step)] == [3, 6, 9]
    assert [step for step in range(5, 12) if job.wants_preview(step)] == [5, 8, 11]  # a second batch
    assert not any(Job("b", job.request).wants_preview(step) for step in range(9))


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
    while queue.running_job() is None:
        time.sleep(0.01)
    assert [queue.progress(name).position for name in ("a", "b", "c")] == [0, 1, 2]
    executor.go.set()
    assert all(job.wait(120) for job in jobs)
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
    assert job.wait(120)
    assert job.status is JobStatus.INTERRUPTED
    assert len(job.result().samples) == 1


def test_a_waiting_job_is_taken_out_of_the_line(queue: JobQueue, executor: Stepping) -> None:
    first = queue.submit(GenerationRequest())
    second = queue.submit(GenerationRequest())
    queue.interrupt(second.task_id)
    assert second.wait(120)
    with pytest.raises(Interrupted, match="before it started"):
        second.result()
    executor.go.set()
    assert first.wait(120)
    assert executor.order == [first.task_id]


def test_errors_for_the_user_and_our_own_end_the_job_but_not_the_queue(queue: JobQueue, executor: Stepping) -> None:
    executor.go.set()
    failed, crashed = queue.submit(GenerationRequest(prompt="fail")), queue.submit(GenerationRequest(prompt="crash"))
    fine = queue.submit(GenerationRequest())
    assert all(job.wait(120) for job in (failed, crashed, fine))
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
    assert first.wait(120)
    second = queue.submit(GenerationRequest(prompt="second"), task_id="x")
    assert second.wait(120) and queue.known.get("x") is second
    prompts = {record.task_id: record.request["prompt"] for record in queue.store.recent()}
    assert prompts == {"x": "second", "x~1": "first"}  # the older record is kept


def test_an_unknown_task_is_an_error(queue: JobQueue) -> None:
    with pytest.raises(UnknownNameError, match="no-such"):
        queue.known.get("no-such")


def test_a_task_id_may_be_used_again_when_its_job_has_ended(queue: JobQueue, executor: Stepping) -> None:
    executor.go.set()
    first = queue.submit(GenerationRequest(prompt="first"), task_id="x")
    assert first.wait(120)
    second = queue.submit(GenerationRequest(prompt="second"), task_id="x")
    assert second.wait(120)
    assert queue.known.get("x") is second
    assert [record.title for record in queue.store.recent()] == ["second", "first"]


def killed(path: Path, executor: Stepping) -> Job:
    """A queue that is left with a running and two waiting jobs, as a killed process leaves it; the running one."""
    queue = JobQueue(executor, JobStore(path))
    queue.start()
    running = queue.submit(GenerationRequest(prompt="running", seed=7, batch_count=3), task_id="running")
    for name in ("first", "second"):
        queue.submit(GenerationRequest(prompt=name), task_id=name)
    while running.status is not JobStatus.RUNNING:
        time.sleep(0.01)
    return running


def restored(path: Path, executor: Stepping | None = None, **options: Any) -> JobQueue:
    queue = JobQueue(executor or Stepping(), JobStore(path), lambda: QueueOptions(**options))
    queue.restore()
    return queue


def image_at(path: Path, key: str = "0/0/0") -> GeneratedImage:
    return GeneratedImage(Image.new("RGB", (8, 8)), "x", 7, 1, path=path, key=key)


def test_after_a_kill_all_jobs_wait_in_their_order_and_the_one_that_ran_comes_first(
    tmp_path: Path, executor: Stepping
) -> None:
    path = tmp_path / "jobs.sqlite"
    killed(path, executor)
    again = Stepping()
    again.go.set()
    queue = restored(path, again)
    jobs = [queue.known.get(name) for name in ("running", "first", "second")]
    assert queue.pending() == tuple(jobs)
    assert (jobs[0].request.prompt, jobs[0].request.seed) == ("running", 7)
    queue.start()
    assert all(job.wait(120) for job in jobs)
    assert again.order == ["running", "first", "second"]
    assert all(job.status is JobStatus.DONE for job in jobs)
    queue.close()
    executor.go.set()


def test_finished_images_are_known_after_a_kill_even_those_that_only_the_disk_knows(
    tmp_path: Path, executor: Stepping
) -> None:
    path = tmp_path / "jobs.sqlite"
    job = killed(path, executor)
    for key in ("0/0/0", "0/1/0", "0/2/0"):
        image = image_at(tmp_path / f"{key.replace('/', '-')}.png", key)
        assert image.path is not None
        data = BytesIO()
        image.image.save(data, "PNG")
        job.saving(image, image.path, fingerprint_of(data.getvalue()))
        if key == "0/2/0":
            continue  # the kill came before the file appeared
        image.path.write_bytes(data.getvalue())
        if key == "0/0/0":
            job.finished_image(image)
    told: list[str] = []

    class Listener:
        def saved_late(self, task_id: str, user: str, image: GeneratedImage, before: Path | None) -> None:
            raise AssertionError

        def finished(self, task_id: str, user: str, image: GeneratedImage) -> None:
            told.append(image.key)

    queue = JobQueue(Stepping(), JobStore(path))
    queue.images.listen(Listener())
    queue.restore()
    assert set(queue.known.get("running").made) == {"0/0/0", "0/1/0"}
    assert told == ["0/1/0"]
    queue.close()
    executor.go.set()


def test_a_job_that_is_killed_again_and_again_fails_with_the_reason(tmp_path: Path, executor: Stepping) -> None:
    path = tmp_path / "jobs.sqlite"
    killed(path, executor)
    for _ in range(2):
        queue = restored(path)
        assert queue.known.get("running").status is JobStatus.QUEUED
        queue.store.started("running")  # and killed
    queue = restored(path)
    record = queue.record("running")
    assert record.status is JobStatus.FAILED
    assert record.error == "The server ended 3 times while this job ran; it is not tried again."
    again = queue.again("running")
    assert isinstance(again, Job) and again.request.seed == 7
    queue.close()
    executor.go.set()


def test_a_finished_image_has_the_tries_counted_anew(tmp_path: Path, executor: Stepping) -> None:
    path = tmp_path / "jobs.sqlite"
    job = killed(path, executor)
    job.finished_image(image_at(tmp_path / "a.png"))
    queue = restored(path, retries=0)
    assert queue.known.get("running").status is JobStatus.QUEUED
    queue.close()
    executor.go.set()


def test_a_job_whose_client_is_gone_ends_with_the_server(tmp_path: Path, executor: Stepping) -> None:
    path = tmp_path / "jobs.sqlite"
    JobQueue(executor, JobStore(path)).submit(GenerationRequest(), task_id="answer only", is_lasting=False)
    queue = restored(path)
    assert queue.pending() == ()
    record = queue.record("answer only")
    assert record.status is JobStatus.INTERRUPTED and "its client waits no more" in str(record.error)
    queue.close()


def test_a_queue_can_be_paused_at_start_and_a_pause_outlives_it(tmp_path: Path, executor: Stepping) -> None:
    path = tmp_path / "jobs.sqlite"
    killed(path, executor)
    queue = restored(path, starts_paused=True)
    queue.start()
    assert queue.is_paused and queue.running_job() is None
    queue.pause()
    queue.close()
    queue = restored(path)
    assert queue.is_paused and len(queue.pending()) == 3
    queue.close()
    executor.go.set()


def test_an_edited_record_fails_its_job_and_no_other(tmp_path: Path, executor: Stepping) -> None:
    path = tmp_path / "jobs.sqlite"
    killed(path, executor)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE jobs SET request = 'nonsense' WHERE task_id = 'running'")
        database.execute("UPDATE jobs SET request = json_set(request, '$.steps', 'many') WHERE task_id = 'first'")
    database.close()
    again = Stepping()
    again.go.set()
    queue = restored(path, again)
    first, second = queue.known.get("first"), queue.known.get("second")
    queue.start()
    assert first.wait(120) and second.wait(120)
    assert second.status is JobStatus.DONE
    assert first.status is JobStatus.FAILED and str(first.error) == "steps is 'many'; allowed is 1 to 1000."
    assert [entry.task_id for entry in queue.pending()] == []
    queue.close()
    executor.go.set()


def test_what_a_shutdown_cuts_off_goes_on_at_the_next_start(tmp_path: Path, executor: Stepping) -> None:
    queue = JobQueue(executor, JobStore(tmp_path / "jobs.sqlite"))
    queue.start()
    running = queue.submit(GenerationRequest(steps=1000), task_id="running")
    waiting = queue.submit(GenerationRequest(), task_id="waiting")
    while running.status is not JobStatus.RUNNING:
        time.sleep(0.01)
    queue.close()
    queue.close()  # twice does no harm
    assert running.wait(120) and len(running.result().samples) == 1
    with pytest.raises(Interrupted, match="goes on when the server is started again"):
        waiting.result()
    queue = restored(tmp_path / "jobs.sqlite", retries=0)
    assert [entry.task_id for entry in queue.pending()] == ["running", "waiting"]
    queue.close()


def start_image() -> SourceImage:
    return SourceImage.of(Image.new("RGB", (8, 8), (1, 2, 3)))


def test_images_that_jobs_begin_with_are_files_beside_the_record_and_go_with_the_last_job(tmp_path: Path) -> None:
    path, folder = tmp_path / "jobs.sqlite", tmp_path / "jobs-inputs"
    queue = JobQueue(Stepping(), JobStore(path))
    request = GenerationRequest(start=FromImage(images=(start_image(),)))
    for name in ("a", "b"):
        queue.submit(request, task_id=name)
    assert [file.stem for file in folder.iterdir()] == [start_image().sha256]
    assert len(str(queue.record("a").request["start"])) < 500
    (folder / f"{'0' * 64}.png").write_bytes(b"left by a killed server")
    queue = restored(path)
    assert [file.stem for file in folder.iterdir()] == [start_image().sha256]
    assert queue.known.get("a").request.start == request.start
    queue.interrupt("a")
    queue.store.remove(["a"])
    assert list(folder.iterdir())
    queue.interrupt("b")
    queue.store.remove(["b"])
    assert not list(folder.iterdir())
    queue.close()


def test_an_input_that_was_changed_fails_its_job_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    JobQueue(Stepping(), JobStore(path)).submit(
        GenerationRequest(start=FromImage(images=(start_image(),))), task_id="a"
    )
    Image.new("RGB", (8, 8)).save(tmp_path / "jobs-inputs" / f"{start_image().sha256}.png")
    queue = restored(path)
    with pytest.raises(InvalidValueError, match="is another one than was submitted"):
        _ = queue.known.get("a").request
    queue.close()


def test_a_job_whose_model_is_gone_waits_and_says_for_what(executor: Stepping) -> None:
    gone = {"x"}
    models = Models(
        lambda request: (request.prompt, (request.prompt,)), lambda needs: f"for {needs[0]}" * (needs[0] in gone)
    )
    queue = JobQueue(executor, JobStore(None), models=models)
    waits, runs = (queue.submit(GenerationRequest(prompt=name), task_id=name) for name in ("x", "y"))
    executor.go.set()
    queue.start()
    assert runs.wait(120) and not waits.status.is_final
    assert waits.standing.waits_for == "for x"
    gone.clear()
    queue.submit(GenerationRequest(prompt="z"))  # wakes the worker, as time does
    assert waits.wait(120) and waits.status is JobStatus.DONE
    queue.close()


def test_waiting_jobs_are_moved_renamed_changed_and_run_next(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    queue = JobQueue(Stepping(), JobStore(path))
    for name in "abcd":
        queue.submit(GenerationRequest(prompt=name), task_id=name)
    queue.move("d", 1)
    queue.run_next("c")
    queue.move_before("a", None)
    queue.rename("b", "a title")
    queue.bookmark("b")
    queue.change("b", lambda request: replace(request, prompt="changed", seed=-1))
    with pytest.raises(InvalidValueError, match="width is 7"):
        queue.change("b", lambda request: replace(request, width=7))
    assert [entry.task_id for entry in queue.pending()] == ["c", "d", "b", "a"]
    again = restored(path)
    assert [entry.task_id for entry in again.pending()] == ["c", "d", "b", "a"]
    assert again.known.get("b").request.prompt == "changed" and again.known.get("b").request.seed >= 0
    assert again.known.get("c").standing.is_pinned and again.known.get("b").standing.is_bookmarked
    with pytest.raises(UnknownNameError, match="No waiting job"):
        again.move("nothing", 0)
    again.close()


def test_the_place_between_two_neighbours_never_runs_out(tmp_path: Path) -> None:
    queue = JobQueue(Stepping(), JobStore(None))
    for name in "abc":
        queue.submit(GenerationRequest(), task_id=name)
    for number in range(200):
        queue.move("abc"[number % 3], 1)
    assert [item.task_id for item in queue.pending()] == [record.task_id for record in queue.store.waiting()]
    queue.close()


def test_when_done_happens_once_and_only_after_work(executor: Stepping) -> None:
    done: list[WhenDone] = []
    queue = JobQueue(executor, JobStore(None))
    queue.dispatcher.on_done(done.append)
    queue.start()
    executor.go.set()
    first = queue.submit(GenerationRequest())
    assert first.wait(120)
    time.sleep(0.05)
    queue.dispatcher.set_when_done(WhenDone.UNLOAD)
    time.sleep(0.05)
    assert done == []
    for _ in range(2):
        assert queue.submit(GenerationRequest()).wait(120)
        while not done:  # told by the dispatcher's thread, after the job
            time.sleep(0.01)
        time.sleep(0.05)
    assert done == [WhenDone.UNLOAD]
    queue.close()


def test_thousands_of_jobs_stand_in_line_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    store = JobStore(path)
    queue = JobQueue(Stepping(), store)
    queue.submit(GenerationRequest(prompt="one"), task_id="one")
    store.file.close()
    with sqlite3.connect(path) as database:
        names = [row[1] for row in database.execute("PRAGMA table_info(jobs)") if row[1] not in ("task_id", "position")]
        columns = ", ".join(names)
        database.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1999) INSERT INTO jobs "
            f"(task_id, position, {columns}) SELECT 'n' || i, i + 1, {columns} FROM n, jobs WHERE task_id = 'one'"
        )
    database.close()
    began = time.monotonic()
    queue = restored(path, max_waiting=2000)
    line = queue.first()
    assert time.monotonic() - began < 20
    assert len(queue.pending()) == 2000 and [entry.task_id for entry in line[:3]] == ["one", "n1", "n2"]
    with pytest.raises(BusyError, match="2000 jobs wait"):
        queue.submit(GenerationRequest())
    queue.move("n1999", 0)
    began_cpu = time.process_time()
    assert queue.first(500)[0].task_id == "n1999" and queue.progress("n1998").position == 1999
    assert time.process_time() - began_cpu < 0.2
    began_cpu = time.process_time()
    assert queue.clear() == 2000
    assert time.process_time() - began_cpu < 1 and queue.store.count((JobStatus.QUEUED,)) == 0
    queue.close()


def test_a_clock_that_jumps_changes_neither_order_nor_times(
    tmp_path: Path, executor: Stepping, monkeypatch: pytest.MonkeyPatch
) -> None:
    shift = [0.0]
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + shift[0])
    path = tmp_path / "jobs.sqlite"
    queue = JobQueue(executor, JobStore(path))
    queue.start()
    running = queue.submit(GenerationRequest(steps=1000), task_id="running")
    for name, seconds in (("a", 1e7), ("b", -1e7), ("c", 0.0), ("d", -3e9)):  # the last is before 1970
        shift[0] = seconds
        queue.submit(GenerationRequest(), task_id=name)
    until = time.monotonic() + 120
    while running.progress().step < 3 and time.monotonic() < until:
        time.sleep(0.01)
    for seconds in (-1e7, 1e7):
        shift[0] = seconds
        progress = running.progress()
        assert 0.0 < progress.elapsed_s < 10 and progress.eta_s is not None and 0.0 <= progress.eta_s < 3600
    queue.close()
    again = restored(path)
    assert [entry.task_id for entry in again.first()] == ["running", "a", "b", "c", "d"]
    again.close()


@pytest.mark.parametrize(
    "edit",
    [
        "position = 'x'",
        "position = NULL",
        "needs = '{'",
        "user = x'ff'",
        "attempts = 'many'",
        "created_at = 'yesterday'",
        "status = 'sleeping'",
        "title = NULL",
        "request = '[]'",
        "request = x'00ff'",
        "kind = 'unknown'",
        "model = NULL",
    ],
)
def test_whatever_is_edited_into_a_record_the_others_run(tmp_path: Path, executor: Stepping, edit: str) -> None:
    path = tmp_path / "jobs.sqlite"
    killed(path, executor)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute(f"UPDATE OR IGNORE jobs SET {edit} WHERE task_id = 'first'")
    database.close()
    again = Stepping()
    again.go.set()
    queue = restored(path, again)
    queue.start()
    second = queue.known.get("second")
    assert second.wait(120) and second.status is JobStatus.DONE
    assert queue.store.recent() and queue.store.ended_jobs()
    queue.close()
    executor.go.set()


def test_the_line_is_bounded_and_can_be_cleared(executor: Stepping) -> None:
    queue = JobQueue(executor, JobStore(None), lambda: QueueOptions(max_waiting=2))
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


def test_titles_hold_no_characters_that_nobody_sees(queue: JobQueue) -> None:
    job = queue.submit(GenerationRequest(prompt="a\x1b cat\u202e gnp.x"))
    assert job.title == "a cat gnp.x"
    queue.rename(job.task_id, "b\x1b[31m")
    assert job.title == queue.record(job.task_id).title == "b[31m"
