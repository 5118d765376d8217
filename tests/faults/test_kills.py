"""kill -9, signals and second servers: no image is lost, none is made twice, and every job is done in the end.

A few kills here, a hundred in `benchmarks.faults`.
"""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.kills import BODY, asked, kill_at_random, submit
from tests.faults.server import Refused, TinyServer

FINISHED = "SELECT key FROM job_images WHERE is_done"
KILLS = 5
JOBS = 4


def test_kills_at_random_moments_lose_nothing_and_make_nothing_twice(tmp_path: Path) -> None:
    data = tmp_path / "data"
    found = kill_at_random(data, KILLS, JOBS)
    assert found.is_whole, found
    assert found.jobs == JOBS and found.images == JOBS * BODY["n_iter"]
    assert not list((data / "outputs").rglob("*.tmp"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TinyServer]:
    server = TinyServer(tmp_path / "data")
    server.wait_until_up()
    yield server
    server.kill()


def wait_for_line(server: TinyServer, length: int) -> None:
    until = time.monotonic() + 120
    while server.ask("/internal/pending-tasks")["size"] < length and time.monotonic() < until:
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_before_its_line_is_done(server: TinyServer, tmp_path: Path, number: int) -> None:
    with ThreadPoolExecutor(20) as clients:
        for task in range(20):
            clients.submit(submit, server, f"job-{task}", steps=20, n_iter=40)
        wait_for_line(server, 20)
        until = time.monotonic() + 120
        while not asked(tmp_path / "data", FINISHED) and time.monotonic() < until:
            time.sleep(0.05)
        server.signal(number)
        assert server.exit_code(60) == 0
    assert asked(tmp_path / "data", FINISHED)
    again = TinyServer(tmp_path / "data")
    again.wait_until_up()
    waiting = again.ask("/internal/pending-tasks")["tasks"]
    assert sorted(waiting) == sorted(f"job-{task}" for task in range(20))
    again.kill()


def test_a_second_server_on_the_same_folder_says_so_and_ends(server: TinyServer, tmp_path: Path) -> None:
    second = TinyServer(tmp_path / "data")
    assert second.exit_code(120) == 1
    said = second.log.read_text()
    assert "A server uses the data folder" in said and f"port {server.port}" in said and "--data-dir" in said
    assert server.ask("/internal/ping") == {}


def test_damaged_files_do_not_stop_the_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "jobs.sqlite").write_bytes(b"garbage" * 1000)
    (data / "styles.csv").write_bytes(b"name,prompt\n\xff\xfe,x\n")
    (data / "config.json").mkdir()
    server = TinyServer(data)
    server.wait_until_up()
    notices = " ".join(server.ask("/internal/notices"))
    server.kill()
    assert all(name in notices for name in ("jobs.sqlite.corrupt-1", "styles.csv", "config.json.corrupt-1"))


def test_jobs_of_clients_that_have_gone_end_unless_they_may_come_back(server: TinyServer) -> None:
    answer_only = {**BODY, "save_images": False, "steps": 1000}
    for body, timeout_s in ((answer_only, 0.5), (answer_only, 0.5), ({**answer_only, "force_task_id": "kept"}, 1.5)):
        with pytest.raises(TimeoutError):
            server.ask("/sdapi/v1/txt2img", body, timeout_s=timeout_s)
    until = time.monotonic() + 120
    while server.ask("/internal/pending-tasks")["tasks"] != ["kept"] and time.monotonic() < until:
        time.sleep(0.1)
    assert server.ask("/internal/pending-tasks")["tasks"] == ["kept"]
    assert server.ask("/internal/clear-queue", method="POST") == {"cleared": 0}


def test_an_open_server_is_not_started(tmp_path: Path) -> None:
    server = TinyServer(tmp_path / "data", "--listen")
    assert server.exit_code(120) == 1
    assert "--access-token" in server.log.read_text()


def test_the_token_that_was_drawn_is_printed(tmp_path: Path) -> None:
    server = TinyServer(tmp_path / "data", "--access-token")
    until = time.monotonic() + 120
    while "?token=" not in server.log.read_text() and time.monotonic() < until:
        time.sleep(0.1)
    token = server.log.read_text().partition("?token=")[2].split()[0]
    while time.monotonic() < until:
        with suppress(ConnectionError):
            assert server.ask(f"/internal/ping?token={token}") == {}
            break
        time.sleep(0.1)
    with pytest.raises(Refused) as refused:
        server.ask("/internal/ping")
    assert refused.value.args[0] == 401
    server.kill()
