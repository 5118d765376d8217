import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.errors import BusyError, FeatherweightError, InvalidValueError
from modules.jobs.job import Job, JobStatus, WorkerLostError
from modules.jobs.lanes import Lane
from modules.jobs.line import QueueOptions
from modules.jobs.store import JobStore
from modules.jobs.workers.executor import ServerSide, WorkerExecutor, WorkerOptions, WorkerState
from modules.jobs.workers.loop import is_device_failure
from modules.jobs.workers.process import CpuOfMachine, ProcessTransport, Share, bind, cause_of, processes, share_of
from modules.jobs.workers.protocol import JobFailed, Question, error_of, failure_of
from modules.models.files.hashing import HashProgress
from modules.processing.record.output import Output
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, Result
from modules.processing.request.source_images import FromImage, SourceImage
from modules.settings.values import Settings
from tests.jobs.fake_worker import FakeProduct, broken, build, fake_spec, result_of
from tests.queues import JobQueue


@dataclass
class Place:
    """A queue with one worker process, and what it has told."""

    folder: Path
    worker: WorkerExecutor
    queue: JobQueue
    told: list[GeneratedImage]
    options: WorkerOptions = field(default_factory=WorkerOptions)

    def saved_late(self, task_id: str, user: str, image: GeneratedImage, before: Path | None) -> None:
        raise AssertionError

    def finished(self, task_id: str, user: str, image: GeneratedImage) -> None:
        self.told.append(image)

    def made(self, prompt: str, count: int = 1, **more: Any) -> Job:
        job = self.submit(prompt, count, **more)
        assert job.wait(120)
        return job

    def submit(self, prompt: str, count: int = 1, steps: int = 3, **more: Any) -> Job:
        request = GenerationRequest(prompt=prompt, seed=7, steps=steps, width=16, height=16, batch_count=count, **more)
        return self.queue.submit(request, preview_every=1)

    def files(self) -> list[Path]:
        return sorted(self.folder.rglob("*.png"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("data")
    worker = WorkerExecutor(
        "worker-1",
        lambda: ProcessTransport("worker-1", build, folder),
        Output(folder),
        lambda: made.options,
        ServerSide(settings=lambda: Settings().with_changes({"queue_limit": 77})),
        does_tasks=True,
        backoff_s=0.01,
    )
    lane = Lane(worker, "worker-1", lambda: worker.is_ready, is_endable=True)
    queue = JobQueue([lane], JobStore(folder / "jobs.sqlite"), lambda: QueueOptions(retries=2))
    worker.changed = queue.dispatcher.wake
    made = Place(folder, worker, queue, [])
    queue.images.listen(made)
    worker.start()
    queue.start()
    yield made
    queue.close()
    assert worker.facts.state is WorkerState.ENDED


def until(condition: Callable[[], object], timeout_s: float = 120.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_a_job_in_another_process_is_like_one_in_this(place: Place) -> None:
    """Progress, preview, files, record: nothing is missing, and nothing is there twice."""
    before, told = len(place.files()), len(place.told)
    job = place.made("a cat", 2)
    assert job.status is JobStatus.DONE
    result = job.result()
    assert [image.seed for image in result.images] == [7, 8] and result.images[0].image.size == (16, 16)
    assert [image.path for image in result.images] == place.files()[before:]
    for image in result.images:
        assert image.path is not None
        with Image.open(image.path) as file:
            assert file.info["parameters"] == f"a cat\nSeed: {image.seed}"
    assert [image.key for image in place.told[told:]] == ["0/0/0", "0/1/0"]
    progress = job.progress()
    assert (progress.step, progress.total_steps, progress.images_done) == (6, 6, 2) and progress.preview_id > 2
    assert place.worker.facts.state is WorkerState.IDLE and place.worker.facts.place.startswith("process ")


def test_images_and_settings_of_a_request_arrive(place: Place) -> None:
    source = SourceImage.of(Image.new("RGB", (16, 16), "red"))
    settings = Settings().with_changes({"samples_format": "webp"})
    job = place.made("a", start=FromImage(images=(source,)), settings=settings)
    path = job.result().images[0].path
    assert path is not None and path.suffix == ".webp"


def test_an_error_of_the_job_is_told_and_the_worker_stays(place: Place) -> None:
    jobs, starts = place.worker.facts.jobs, place.worker.facts.restarts
    job = place.made("error")
    assert job.status is JobStatus.FAILED and "RuntimeError: boom" in str(job.error)
    assert (place.worker.facts.jobs, place.worker.facts.restarts) == (jobs + 1, starts)


def test_a_running_job_is_interrupted_skipped_and_stopped_after_a_batch(place: Place) -> None:
    job = place.submit("slow", 2, steps=100)
    until(lambda: job.progress().step > 1)
    place.queue.interrupt(job.task_id)
    assert job.wait(120) and job.status is JobStatus.INTERRUPTED and job.result().interrupted

    job = place.submit("slow", 2, steps=60)
    until(lambda: job.progress().step > 1)
    place.queue.skip()
    until(lambda: job.progress().step > 60)
    place.queue.interrupt()
    assert job.wait(120) and job.result().images == ()

    job = place.submit("slow", 3, steps=10)
    until(lambda: job.progress().step > 1)
    place.queue.interrupt(job.task_id, after_batch=True)
    assert job.wait(120) and len(job.result().images) == 1


def test_a_task_in_another_process_is_like_one_in_this(place: Place) -> None:
    """Progress, what it keeps and makes, and what it notes before it goes on; with what was attached to it."""
    spec = fake_spec({"how": ""}, Settings())
    task = place.queue.submit_spec(spec)
    assert task.wait(120) and task.status is JobStatus.DONE, task.error
    assert task.result()["done"] == [0, 1, 2, 3] and task.result()["pid"] != os.getpid()
    assert isinstance(task.product, FakeProduct) and task.product.items == [(step, "x") for step in range(4)]
    assert task.result()["limit"] == 77  # by the server's settings
    assert task.state.fraction == 1.0 and place.queue.record(task.task_id).status is JobStatus.DONE


def test_a_task_whose_worker_dies_is_tried_again_without_what_it_had_noted(place: Place, tmp_path: Path) -> None:
    task = place.queue.submit_spec(fake_spec({"how": f"kill:{tmp_path / 'killed'}"}, Settings()))
    assert task.wait(120) and task.status is JobStatus.DONE, task.error
    assert task.result()["done"] == [2, 3]
    assert isinstance(task.product, FakeProduct) and [step for step, _ in task.product.items] == [2, 3]


def test_a_task_lets_images_in_for_which_the_worker_has_room(place: Place, tmp_path: Path) -> None:
    task = place.queue.submit_spec(fake_spec({"how": f"images:{tmp_path / 'go'}"}, Settings()))
    until(lambda: task.status is JobStatus.RUNNING)
    small, large = place.submit("small", 2), place.submit("large")
    (tmp_path / "go").touch()
    assert task.wait(120) and large.wait(120)
    assert all(one.status is JobStatus.DONE for one in (task, small, large)), (task.error, small.error)
    assert small.is_let_in and not large.is_let_in and len(small.result().images) == 2
    assert place.worker.facts.state is WorkerState.IDLE


def test_a_worker_that_dies_of_an_image_between_two_steps_of_a_task_does_both_again(
    place: Place, tmp_path: Path
) -> None:
    task = place.queue.submit_spec(fake_spec({"how": f"images:{tmp_path / 'go'}"}, Settings()))
    until(lambda: task.status is JobStatus.RUNNING)
    killed = place.submit(f"kill:{tmp_path / 'killed'}")
    (tmp_path / "go").touch()
    assert task.wait(120) and killed.wait(120)
    assert task.status is JobStatus.DONE and killed.status is JobStatus.DONE, (task.error, killed.error)
    assert task.result()["done"] == [3]  # the others were noted


def test_a_task_that_fails_or_is_interrupted_says_so_and_the_worker_stays(place: Place) -> None:
    starts = place.worker.facts.restarts
    task = place.queue.submit_spec(fake_spec({"how": "error"}, Settings()))
    assert task.wait(120) and task.status is JobStatus.FAILED and "RuntimeError: boom" in str(task.error)
    task = place.queue.submit_spec(fake_spec({"how": "slow"}, Settings()))
    until(lambda: task.state.outcome is not None)
    place.queue.interrupt(task.task_id)
    assert task.wait(120) and task.status is JobStatus.INTERRUPTED and task.result()["done"][0] == 0
    assert place.worker.facts.restarts == starts


@pytest.mark.parametrize(
    ("how", "words"),
    [("kill", "was killed"), ("segfault", "crashed (SIGSEGV)"), ("device", "its GPU takes no more work")],
)
def test_a_job_whose_worker_dies_is_tried_again_without_its_finished_images(
    place: Place, how: str, words: str, tmp_path: Path
) -> None:
    before, told, restarts = len(place.files()), len(place.told), place.worker.facts.restarts
    job = place.made(f"{how}:{tmp_path / 'died'}", 2)
    assert job.status is JobStatus.DONE and [image.seed for image in job.result().images] == [7, 8]
    assert words in job.result().notices[0] and "tried again" in job.result().notices[0]
    assert len(place.files()) == before + 2 and len(place.told) == told + 2  # the first image was finished once
    assert place.worker.facts.restarts == restarts + 1 and place.worker.facts.message == ""


def test_a_worker_that_does_not_stop_is_ended_after_the_grace_time(place: Place) -> None:
    place.options = WorkerOptions(grace_s=0.2)
    job = place.submit("hang", 2)
    until(lambda: job.progress().images_done == 1)
    place.queue.interrupt(job.task_id)
    assert job.wait(120) and job.status is JobStatus.INTERRUPTED
    assert "did not stop within 0.2 s and was ended" in str(job.error)
    record = place.queue.record(job.task_id)
    assert record.outcome is not None and len(record.outcome["images"]) == 1
    assert place.made("after it").status is JobStatus.DONE


def test_a_worker_killed_while_idle_costs_no_job_a_try(place: Place) -> None:
    place.made("before")
    os.kill(int(place.worker.facts.place.split()[1].strip(",")), signal.SIGKILL)
    job = place.made("after")
    assert job.status is JobStatus.DONE


def test_model_and_settings_are_reached_in_the_worker(place: Place) -> None:
    until(lambda: place.worker.is_ready)
    until(lambda: place.worker.ask(Question.MEMORY) == {"ram": {"used": 77}})  # the settings it was sent when it began
    place.worker.change_settings(Settings().with_changes({"queue_limit": 5}))
    assert place.worker.ask(Question.MEMORY) == {"ram": {"used": 5}}
    place.worker.load("a")
    until(lambda: place.worker.status.message == "loaded a")
    assert place.worker.hashing == HashProgress("a", 0.5)
    place.worker.unload()
    until(lambda: place.worker.status.message == "unloaded")
    place.worker.refresh()
    with pytest.raises(FeatherweightError, match="cannot be loaded again"):
        place.worker.ask(Question.RELOAD)


def test_a_worker_that_cannot_begin_is_tried_again_and_says_why(tmp_path: Path) -> None:
    worker = WorkerExecutor("w", lambda: ProcessTransport("w", broken, tmp_path), Output(tmp_path), backoff_s=30.0)
    worker.start()
    until(lambda: worker.facts.state is WorkerState.WAITING)
    assert worker.facts.message == "The worker ended by itself (exit code 1). It starts again in 30 s."
    with pytest.raises(BusyError, match="is not there now"):
        worker.ask(Question.MEMORY)
    with pytest.raises(WorkerLostError):
        worker.run(Job("task", GenerationRequest()))
    worker.close()
    worker.close()


def test_the_servers_end_is_the_workers_end(tmp_path: Path) -> None:
    transport = ProcessTransport("w", build, tmp_path)
    transport.receive()
    transport._connection.close()
    transport._process.join(5)
    assert transport._process.exitcode == 1


# -- several lanes -----------------------------------------------------------------------------------------------------


class Slow:
    """Computes until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.ran: list[str] = []
        self.lost: WorkerLostError | None = None

    def run(self, job: Job) -> Result:
        self.ran.append(job.task_id)
        if self.lost is not None:
            raise self.lost
        while not self.go.wait(0.01):
            job.check()
        return result_of(job.request, [], False)

    def close(self) -> None:
        self.go.set()


@pytest.fixture
def lanes() -> Iterator[tuple[JobQueue, Slow, Slow]]:
    one, two = Slow(), Slow()
    queue = JobQueue([Lane(one, "one"), Lane(two, "two", takes=lambda entry: isinstance(entry, Job))], JobStore(None))
    queue.start()
    yield queue, one, two
    one.go.set()
    two.go.set()
    queue.close()


def test_lanes_work_at_the_same_time_and_an_interrupt_reaches_all(lanes: tuple[JobQueue, Slow, Slow]) -> None:
    queue, one, two = lanes
    jobs = [queue.submit(GenerationRequest(), task_id=name) for name in "abc"]
    until(lambda: [job.status for job in jobs[:2]] == [JobStatus.RUNNING] * 2)  # a lane takes an entry before it begins
    assert len(queue.running()) == 2 and queue.waiting_count() == 1
    assert queue.running_job() is not None and [entry.task_id for entry in queue.pending()][-1] == "c"
    queue.interrupt()
    assert jobs[0].wait(120) and jobs[1].wait(120)
    assert all(job.status is JobStatus.INTERRUPTED for job in jobs[:2])
    one.go.set()
    two.go.set()
    assert jobs[2].wait(120) and jobs[2].status is JobStatus.DONE


def test_a_lane_is_given_what_it_takes_and_tasks_have_something_around_them() -> None:
    one, two = Slow(), Slow()
    entered: list[str] = []

    class Around:
        def __enter__(self) -> None:
            entered.append("in")

        def __exit__(self, *_: object) -> None:
            entered.append("out")

    queue = JobQueue(
        [Lane(one, "one", takes=lambda entry: not isinstance(entry, Job), around_task=Around), Lane(two, "two")],
        JobStore(None),
    )
    two.go.set()
    queue.start()
    job = queue.submit(GenerationRequest())
    assert job.wait(120) and two.ran == [job.task_id] and one.ran == []
    tasks = [queue.submit_task("k", "t", lambda task: {"a": 1}) for _ in range(8)]
    assert all(task.wait(120) for task in tasks) and entered[:2] in ([], ["in", "out"])
    queue.close()


def test_a_job_avoids_the_lane_that_could_not_do_it_and_that_counts_as_no_try(
    lanes: tuple[JobQueue, Slow, Slow],
) -> None:
    queue, one, two = lanes
    one.lost = WorkerLostError("The server x does not answer.", avoid="one")
    two.go.set()
    jobs = [queue.submit(GenerationRequest()) for _ in range(4)]
    assert all(job.wait(120) and job.status is JobStatus.DONE for job in jobs)
    assert len(set(one.ran)) == len(one.ran)  # none was given to it twice
    avoided = [job for job in jobs if job.standing.avoids]
    assert all(job.standing.attempts <= 1 and "tried again" in job.result().notices[0] for job in avoided)


def test_an_interrupted_job_is_not_tried_again(lanes: tuple[JobQueue, Slow, Slow]) -> None:
    queue, one, two = lanes
    job = queue.submit(GenerationRequest())
    until(lambda: job.status is JobStatus.RUNNING)
    lost = WorkerLostError("The worker was killed.")
    job.interrupt()
    assert job.wait(120) and job.status is JobStatus.INTERRUPTED
    one.lost = two.lost = lost
    job = queue.submit(GenerationRequest())
    assert job.wait(120) and job.status is JobStatus.FAILED and "3 times" in str(job.error)


# -- data --------------------------------------------------------------------------------------------------------------


def cpu_with(cores: int, limit: int | None = None) -> CpuOfMachine:
    """Two threads a core: n and n + cores."""
    return CpuOfMachine(tuple((number, number + cores) for number in range(cores)), limit or cores)


def test_cores_and_gpus_are_shared() -> None:
    assert share_of(0, 1, 4, cpu_with(16)) == Share()
    assert [share_of(i, 3, 0, cpu_with(8), {}).threads for i in range(3)] == [2, 2, 2]
    gpus = [share_of(index, 3, 2, cpu_with(8), {}) for index in range(3)]
    assert [share.environment["CUDA_VISIBLE_DEVICES"] for share in gpus] == ["0", "1", "0"]
    assert not any(share.cores for share in gpus)
    assert share_of(1, 2, 2, cpu_with(8), {"CUDA_VISIBLE_DEVICES": "3,5"}).environment == {"CUDA_VISIBLE_DEVICES": "5"}
    assert [name for name, _ in processes(2, build, Path(), lambda: 0)] == ["worker-1", "worker-2"]


def test_workers_on_the_cpu_have_cores_of_their_own() -> None:
    shares = [share_of(index, 3, 0, cpu_with(8), {}) for index in range(3)]
    assert [sorted(share.cores) for share in shares] == [[0, 1, 8, 9], [2, 3, 4, 10, 11, 12], [5, 6, 7, 13, 14, 15]]
    assert frozenset.union(*(share.cores for share in shares)) == frozenset(range(16))
    few = share_of(5, 6, 0, cpu_with(2), {})
    assert few.threads == 1 and not few.cores


def test_a_quota_limits_the_threads_of_workers_and_not_their_cores() -> None:
    share = share_of(0, 2, 0, cpu_with(8, limit=4), {})
    assert share.threads == 2 and share.environment["OMP_NUM_THREADS"] == "2" and len(share.cores) == 8


def test_a_worker_stays_on_its_cores(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bound: list[frozenset[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(cores), raising=False)
    bind(Share())
    bind(Share(cores=frozenset((2, 3)), threads=2))
    assert bound == [frozenset((2, 3))]

    def refuse(pid: int, cores: frozenset[int]) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    bind(Share(cores=frozenset((2, 3))))
    assert "could not be bound to cores 2-3" in caplog.text


def test_why_a_process_is_gone_is_said() -> None:
    assert "memory ran out" in cause_of(-9) and cause_of(-11) == "crashed (SIGSEGV)"
    assert "GPU" in cause_of(70) and cause_of(3) == "ended by itself (exit code 3)" and "channel" in cause_of(None)
    assert cause_of(-250) == "crashed (signal 250)"


def test_errors_come_back_as_what_they_were() -> None:
    error = error_of(failure_of(InvalidValueError("too wide")))
    assert type(error) is InvalidValueError and str(error) == "too wide"
    assert "internal error KeyError" in str(error_of(JobFailed("KeyError", "'a'")))
    wrapped = FeatherweightError("x")
    wrapped.__cause__ = RuntimeError("CUDA error: device-side assert triggered")
    assert is_device_failure(wrapped) and not is_device_failure(RuntimeError("CUDA error: out of memory"))
    assert not is_device_failure(ValueError("CUDA error"))


def test_a_worker_that_does_not_stop_is_ended_with_the_server_and_its_job_waits_for_the_next(tmp_path: Path) -> None:
    class Deaf(Slow):
        def run(self, job: Job) -> Result:
            self.go.wait(10)
            raise WorkerLostError("The worker was killed.")

    queue = JobQueue([Lane(Deaf(), "deaf", is_endable=True)], JobStore(tmp_path / "jobs.sqlite"))
    job = queue.submit(GenerationRequest(), task_id="a")
    queue.start()
    until(lambda: job.status is JobStatus.RUNNING)
    queue.close(0.05)
    assert job.status is JobStatus.INTERRUPTED
    (record,) = JobStore(tmp_path / "jobs.sqlite").waiting()
    assert record.status is JobStatus.QUEUED and record.standing.attempts == 0
