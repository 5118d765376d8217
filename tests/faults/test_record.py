"""A record of jobs that is locked, full, damaged or in the way never ends the queue, and never stops the start."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.errors import BusyError, OutputError
from modules.jobs.job import JobStatus
from modules.jobs.store import JobStore
from modules.jobs.tasks import Task
from tests.jobs.test_tasks import NoImages
from tests.queues import JobQueue


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.sqlite"


@pytest.fixture
def queue(file: Path) -> Iterator[JobQueue]:
    queue = JobQueue(NoImages(), JobStore(file))
    queue.start()
    yield queue
    queue.close()


def status_of(queue: JobQueue, task: Task) -> JobStatus | None:
    record = queue.store.get(task.task_id)
    return record.status if record else None


def test_a_locked_record_refuses_new_work_and_keeps_the_worker(queue: JobQueue, file: Path) -> None:
    started, go_on = threading.Event(), threading.Event()

    def work(task: Task) -> dict[str, int]:
        started.set()
        go_on.wait(10)
        return {"value": 1}

    running, waiting = queue.submit_task("a", "runs", work), queue.submit_task("a", "waits", lambda task: {})
    third = queue.submit_task("a", "is taken out", lambda task: {})
    assert started.wait(120)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(BusyError, match="locked by another program"):
        queue.submit_task("a", "refused", lambda task: {})
    queue.interrupt(third.task_id)
    assert third.status is JobStatus.INTERRUPTED
    go_on.set()
    assert running.wait(120) and running.result() == {"value": 1}
    assert waiting.wait(120) and waiting.result() == {}
    other.execute("ROLLBACK")
    other.close()
    after = queue.submit_task("a", "after", lambda task: {})
    assert after.wait(120) and after.result() == {}
    until = time.monotonic() + 120
    while queue.store.file.is_behind and time.monotonic() < until:
        time.sleep(0.05)
    assert status_of(queue, running) is JobStatus.DONE
    assert status_of(queue, third) is JobStatus.INTERRUPTED


def test_a_full_disk_is_told_and_outlived(queue: JobQueue) -> None:
    database = queue.store.file.database.db
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")  # what SQLite answers then is what a full disk makes it answer
    with pytest.raises(OutputError, match="the disk is full"):
        for _ in range(50):
            queue.submit_task("a", "x" * 2000, lambda task: {}, {"filler": "y" * 3000})
    database.execute("PRAGMA max_page_count = 100000")
    after = queue.submit_task("a", "after", lambda task: {})
    assert after.wait(120) and after.result() == {}


@pytest.mark.parametrize("method", ["started", "ended", "flush"])
def test_an_exception_anywhere_leaves_the_worker_alive(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def breaks(*args: object, **options: object) -> None:
        raise RuntimeError("spoilt")

    with monkeypatch.context() as patched:
        patched.setattr(queue.store.file if method == "flush" else queue.store, method, breaks)
        task = queue.submit_task("a", "b", lambda task: {})
        if method != "flush":
            assert task.wait(120) and task.status is JobStatus.FAILED
            assert "RuntimeError: spoilt" in str(task.error)
        time.sleep(0.1)
    after = queue.submit_task("a", "after", lambda task: {})
    assert after.wait(120) and after.result() == {}


def spoil(file: Path, how: str) -> None:
    if how == "a folder":
        file.mkdir()
    elif how == "garbage":
        file.write_bytes(b"\x13garbage" * 1000)
    elif how == "another table":
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE jobs (color TEXT)")
        other.close()
    else:
        store = JobStore(file)
        queue = JobQueue(NoImages(), store)
        for _ in range(60):
            queue.submit_task("a", "t" * 400, lambda task: {}, {"filler": "x" * 400})
        store.file.close()
        data = file.read_bytes()
        if how == "truncated":
            file.write_bytes(data[: len(data) // 2 + 100])
        else:
            file.write_bytes(data[:8192] + b"\xff" * (len(data) - 8192))


@pytest.mark.parametrize("how", ["a folder", "garbage", "truncated", "spoilt pages", "another table"])
def test_a_damaged_record_is_kept_aside_and_a_new_one_begun(file: Path, how: str) -> None:
    spoil(file, how)
    store = JobStore(file)
    assert file.with_name("jobs.sqlite.corrupt-1").exists()
    assert "It was kept as jobs.sqlite.corrupt-1" in store.notices[0]
    queue = JobQueue(NoImages(), store)
    queue.start()
    task = queue.submit_task("a", "b", lambda task: {})
    assert task.wait(120) and status_of(queue, task) is JobStatus.DONE
    queue.close()


def test_an_old_record_gains_what_is_new(file: Path) -> None:
    with sqlite3.connect(file) as old:
        old.executescript(
            "CREATE TABLE jobs (task_id TEXT PRIMARY KEY, kind TEXT NOT NULL, status TEXT NOT NULL, request TEXT NOT "
            "NULL, created_at REAL NOT NULL, started_at REAL, ended_at REAL, error TEXT, outcome TEXT);"
            "INSERT INTO jobs VALUES ('a', 'txt2img', 'running', '{}', 1.0, NULL, NULL, NULL, NULL);"
            "INSERT INTO jobs VALUES ('b', 'txt2img', 'nonsense', '{', 'x', NULL, NULL, NULL, NULL);"
        )
    old.close()
    store = JobStore(file)
    assert store.notices == ()
    assert [(record.task_id, record.title) for record in store.waiting()] == [("a", "")]
    store.file.close()


def test_a_record_of_a_newer_version_is_left_alone(file: Path) -> None:
    with sqlite3.connect(file) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    before = file.read_bytes()
    with pytest.raises(OutputError, match="written by a newer version"):
        JobStore(file)
    assert file.read_bytes() == before
