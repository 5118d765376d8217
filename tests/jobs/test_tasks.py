"""Tasks in the queue: their order among images, progress, cancelling, and what becomes of errors."""

import threading
from collections.abc import Callable, Iterator

import pytest
from PIL import Image

from modules.errors import FeatherweightError, Interrupted, InvalidValueError, UnknownNameError
from modules.jobs.job import Job, JobStatus
from modules.jobs.known import KEPT_AT_LEAST, KEPT_ENTRIES, Known
from modules.jobs.store import JobStore
from modules.jobs.tasks import Outcome, Task, TaskSpec
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, Result
from tests.fakes import result_of
from tests.queues import JobQueue


class NoImages:
    """An executor that fails each image job."""

    def run(self, job: Job) -> Result:
        raise InvalidValueError("no images here")

    def close(self) -> None:
        """Holds nothing."""


@pytest.fixture
def queue() -> Iterator[JobQueue]:
    queue = JobQueue(NoImages(), JobStore(None))
    queue.start()
    yield queue
    queue.close()


def test_tasks_and_images_stand_in_one_line(queue: JobQueue) -> None:
    order: list[int] = []
    release = threading.Event()

    def first(task: Task) -> Outcome:
        release.wait(5)
        order.append(1)
        return {"value": 1}

    def second(task: Task) -> Outcome:
        order.append(2)
        return {"value": 2}

    one = queue.submit_task("a", "first", first)
    image = queue.submit(GenerationRequest())
    two = queue.submit_task("b", "second", second)
    assert image.status is JobStatus.QUEUED
    assert two.state.status is JobStatus.QUEUED
    assert queue.pending()[-2:] == (image, two)
    release.set()
    assert two.wait(120)
    assert order == [1, 2]
    assert image.progress().status is JobStatus.FAILED
    assert (one.result(), two.result()) == ({"value": 1}, {"value": 2})
    assert queue.known.tasks("b") == (two,)
    assert queue.known.tasks() == (two, one)


def test_a_task_is_recorded_with_its_kind_its_request_and_its_outcome(queue: JobQueue) -> None:
    task = queue.submit_task("report", "A report", lambda task: {"bytes": 3}, {"checkpoint": "x"})
    assert task.wait(120)
    record = queue.store.get(task.task_id)
    assert record is not None
    assert (record.type, record.title, record.status) == ("report", "A report", JobStatus.DONE)
    assert (record.request, record.outcome) == ({"checkpoint": "x"}, {"bytes": 3})


def test_progress_says_how_far_and_how_long(queue: JobQueue) -> None:
    def work(task: Task) -> Outcome:
        task.progress(1, 4, "the first of four")
        state = task.state
        return {"fraction": state.fraction, "phase": state.phase, "eta": state.eta_s, "running": state.status.value}

    task = queue.submit_task("a", "some work", work)
    assert task.wait(120)
    outcome = task.result()
    assert (outcome["fraction"], outcome["phase"], outcome["running"]) == (0.25, "the first of four", "running")
    assert outcome["eta"] >= 0
    assert (task.state.fraction, task.state.status) == (1.0, JobStatus.DONE)


def test_a_cancelled_task_stops_at_its_next_word(queue: JobQueue) -> None:
    started, go_on = threading.Event(), threading.Event()

    def work(task: Task) -> Outcome:
        started.set()
        go_on.wait(5)
        task.progress(1, 2)
        raise AssertionError("went on")

    task = queue.submit_task("a", "some work", work)
    waiting = queue.submit_task("a", "never begun", work)
    assert started.wait(120)
    queue.interrupt(task.task_id)
    queue.interrupt(waiting.task_id, why="cancelled")
    assert waiting.wait(120)  # at once: it need not come to its turn
    go_on.set()
    assert task.wait(120)
    assert (task.state.status, waiting.state.status) == (JobStatus.INTERRUPTED, JobStatus.INTERRUPTED)
    with pytest.raises(Interrupted, match="Cancelled"):
        task.result()
    with pytest.raises(Interrupted, match="cancelled before it started"):
        waiting.result()


def test_errors_are_kept_and_the_next_task_runs(queue: JobQueue) -> None:
    def fails(task: Task) -> Outcome:
        raise InvalidValueError("too large")

    def breaks(task: Task) -> Outcome:
        raise ZeroDivisionError("by nothing")

    def leaves(task: Task) -> Outcome:
        raise SystemExit(3)

    first, second = queue.submit_task("a", "first", fails), queue.submit_task("a", "second", breaks)
    third = queue.submit_task("a", "third", leaves)
    fourth = queue.submit_task("a", "fourth", lambda task: {})
    assert fourth.wait(120)
    assert (first.state.error, first.state.status) == ("too large", JobStatus.FAILED)
    with pytest.raises(FeatherweightError, match=r"internal error ZeroDivisionError"):
        second.result()
    with pytest.raises(FeatherweightError, match=r"internal error SystemExit"):
        third.result()
    assert fourth.result() == {}


def test_only_what_ended_last_is_remembered(queue: JobQueue) -> None:
    every = [queue.submit_task("a", str(number), lambda task: {}) for number in range(KEPT_ENTRIES + 5)]
    assert every[-1].wait(120)
    newest = queue.submit_task("a", "newest", lambda task: {})
    assert newest.wait(120)
    assert len(queue.known.tasks()) in (KEPT_ENTRIES, KEPT_ENTRIES + 1)  # before and after the last has left its lane
    with pytest.raises(UnknownNameError, match="No task has the id"):
        queue.known.task(every[0].task_id)
    with pytest.raises(UnknownNameError, match="No job has"):
        queue.known.get(newest.task_id)  # an image job is something else


def test_less_is_remembered_of_large_images() -> None:
    for side_px, remembered in ((1024, KEPT_AT_LEAST + 4), (2048, KEPT_AT_LEAST)):
        known = Known(threading.Lock())
        for number in range(KEPT_AT_LEAST + 4):
            job = Job(str(number), GenerationRequest())
            known.add(job)
            job.finished_image(GeneratedImage(Image.new("RGB", (side_px, 1024)), "x", number, 0))
            job.end(JobStatus.FAILED, FeatherweightError("no"))
        known.forget()
        assert [known.find(str(number)) is not None for number in range(KEPT_AT_LEAST + 4)].count(True) == remembered
        assert known.find(str(KEPT_AT_LEAST + 3)) is not None


def test_a_job_that_failed_after_its_result_is_forgotten_too() -> None:
    """Its end could not be recorded, so that it has a result and an error."""
    image = GeneratedImage(Image.new("RGB", (8, 8)), "x", 1, 0)
    known, job = Known(threading.Lock()), Job("a", GenerationRequest())

    class Ready(NoImages):
        def run(self, job: Job) -> Result:
            return result_of(job.request, [image], False)

    known.add(job)
    job.compute(Ready())
    job.end(JobStatus.FAILED, FeatherweightError("the disk is full"))
    assert job.has_result
    known.forget()
    assert known.find("a") is job


def test_after_closing_nothing_is_taken(queue: JobQueue) -> None:
    queue.close()
    with pytest.raises(Interrupted, match="shutting down"):
        queue.submit_task("a", "late", lambda task: {})


# -- images between two steps of a task --------------------------------------------------------------------------------


def steps_until(queue: JobQueue, end: threading.Event, admits: Callable[[Job], bool], counts: list[int]) -> Task:
    """A task that lets images in after each of its steps."""

    def work(task: Task) -> Outcome:
        while not end.is_set():
            counts.append(queue.dispatcher.let_images_in(task, admits))
            task.check()
            end.wait(0.01)
        return {}

    return queue.submit_task("training", "a training", work)


def test_images_are_made_between_two_steps_of_a_task(queue: JobQueue) -> None:
    end, counts = threading.Event(), list[int]()
    training = steps_until(queue, end, lambda job: job.request.prompt != "large", counts)
    other = queue.submit_task("other", "waits", lambda task: {})
    large, small = (queue.submit(GenerationRequest(prompt=prompt)) for prompt in ("large", "small"))
    assert small.wait(120)
    assert small.is_let_in and not large.is_let_in
    assert training.status is JobStatus.RUNNING
    assert (large.status, other.status) == (JobStatus.QUEUED, JobStatus.QUEUED)
    assert queue.running() == (training,)
    end.set()
    assert other.wait(120) and large.wait(120)
    assert sum(counts) == 1


def test_a_task_that_is_left_for_an_image_still_runs_and_ends_with_the_queue() -> None:
    begun, release, end = threading.Event(), threading.Event(), threading.Event()

    class Waiting(NoImages):
        def run(self, job: Job) -> Result:
            begun.set()
            release.wait(5)
            raise Interrupted("ended")

    queue = JobQueue(Waiting(), JobStore(None))
    queue.start()
    training = steps_until(queue, end, lambda job: True, [])
    image = queue.submit(GenerationRequest())
    assert begun.wait(120)
    assert queue.running() == (image, training)
    assert (queue.running_job(), queue.running()[0]) == (image, image)
    assert training.status is JobStatus.RUNNING
    closing = threading.Thread(target=queue.close)
    closing.start()
    release.set()
    closing.join(5)
    assert (image.status, training.status) == (JobStatus.INTERRUPTED, JobStatus.INTERRUPTED)


def test_nothing_is_let_into_a_paused_queue_or_by_work_that_is_no_task_of_it(queue: JobQueue) -> None:
    end, counts = threading.Event(), list[int]()
    steps_until(queue, end, lambda job: True, counts)
    queue.pause()
    image = queue.submit(GenerationRequest())
    assert not image.wait(0.1)
    stranger = Task("x", "training", "elsewhere", {}, TaskSpec("training", "elsewhere", lambda task: {}))
    assert queue.dispatcher.let_images_in(stranger, lambda job: True) == 0
    queue.pause(False)
    assert image.wait(120)
    end.set()
