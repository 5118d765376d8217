"""Tasks: their order, progress, cancelling, and what becomes of errors."""

import threading

import pytest

from modules.errors import FeatherweightError, Interrupted, InvalidValueError, UnknownNameError
from modules.jobs.job import JobStatus
from modules.jobs.tasks import KEPT_TASKS, Outcome, Task, Tasks


def test_tasks_run_one_after_the_other_and_give_their_outcome() -> None:
    tasks = Tasks()
    order: list[int] = []
    release = threading.Event()

    def first(task: Task) -> Outcome:
        release.wait(5)
        order.append(1)
        return {"value": 1}

    def second(task: Task) -> Outcome:
        order.append(2)
        return {"value": 2}

    one, two = tasks.submit("a", "first", first), tasks.submit("b", "second", second)
    assert two.state.status is JobStatus.QUEUED
    release.set()
    assert two.wait(5)
    assert order == [1, 2]
    assert (one.result(), two.result()) == ({"value": 1}, {"value": 2})
    assert tasks.known("b") == (two,)
    assert tasks.known() == (two, one)
    tasks.close()


def test_progress_says_how_far_and_how_long() -> None:
    def work(task: Task) -> Outcome:
        task.progress(1, 4, "the first of four")
        state = task.state
        return {"fraction": state.fraction, "phase": state.phase, "eta": state.eta_s, "running": state.status.value}

    task = Tasks().submit("a", "some work", work)
    assert task.wait(5)
    outcome = task.result()
    assert (outcome["fraction"], outcome["phase"], outcome["running"]) == (0.25, "the first of four", "running")
    assert outcome["eta"] >= 0
    assert (task.state.fraction, task.state.status) == (1.0, JobStatus.DONE)


def test_a_cancelled_task_stops_at_its_next_word() -> None:
    started, go_on = threading.Event(), threading.Event()

    def work(task: Task) -> Outcome:
        started.set()
        go_on.wait(5)
        task.progress(1, 2)
        raise AssertionError("went on")

    tasks = Tasks()
    task = tasks.submit("a", "some work", work)
    waiting = tasks.submit("a", "never begun", work)
    assert started.wait(5)
    task.cancel()
    waiting.cancel()
    go_on.set()
    assert waiting.wait(5)
    assert (task.state.status, waiting.state.status) == (JobStatus.INTERRUPTED, JobStatus.INTERRUPTED)
    with pytest.raises(Interrupted, match="Cancelled"):
        task.result()


def test_errors_are_kept_and_the_next_task_runs() -> None:
    def fails(task: Task) -> Outcome:
        raise InvalidValueError("too large")

    def breaks(task: Task) -> Outcome:
        raise ZeroDivisionError("by nothing")

    tasks = Tasks()
    first, second = tasks.submit("a", "first", fails), tasks.submit("a", "second", breaks)
    third = tasks.submit("a", "third", lambda task: {})
    assert third.wait(5)
    assert (first.state.error, first.state.status) == ("too large", JobStatus.FAILED)
    with pytest.raises(FeatherweightError, match=r"mistake of ours: ZeroDivisionError"):
        second.result()
    assert third.result() == {}


def test_only_the_last_ended_tasks_are_remembered() -> None:
    tasks = Tasks()
    every = [tasks.submit("a", str(number), lambda task: {}) for number in range(KEPT_TASKS + 5)]
    assert every[-1].wait(5)
    newest = tasks.submit("a", "newest", lambda task: {})
    assert newest.wait(5)
    assert len(tasks.known()) == KEPT_TASKS + 1
    with pytest.raises(UnknownNameError, match="No task has the id"):
        tasks.get(every[0].id)


def test_after_closing_nothing_is_taken() -> None:
    tasks = Tasks()
    tasks.close()
    with pytest.raises(Interrupted, match="shutting down"):
        tasks.submit("a", "late", lambda task: {})
