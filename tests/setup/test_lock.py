"""One set-up at a time, and never a lock that outlives its holder."""

import subprocess
import sys
from pathlib import Path

import pytest

from modules.setup.lock import exclusive
from modules.setup.process import SetupError

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from modules.setup.lock import exclusive
with exclusive(Path(sys.argv[1]), print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "made" / "setup.lock"


def holder(lock: Path) -> "subprocess.Popen[str]":
    """Another process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def end(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def test_a_second_launch_waits_for_the_first_and_says_for_whom(lock: Path) -> None:
    lines: list[str] = []
    with holder(lock) as first, exclusive(lock, lines.append, sleep=lambda seconds: end(first)):
        assert first.poll() is not None
    assert lines == [f"another launch (process {first.pid}) is setting up; waiting for it"]


def test_the_lock_of_a_killed_process_is_taken_over(lock: Path) -> None:
    with holder(lock) as first:
        first.kill()
        first.wait()
        lines: list[str] = []
        with exclusive(lock, lines.append):
            assert lock.read_text(encoding="ascii") != str(first.pid)
    assert lines == []


def test_waiting_ends_with_an_error(lock: Path) -> None:
    refused = pytest.raises(SetupError, match="does not finish")
    with exclusive(lock, print), refused, exclusive(lock, print, wait_seconds=-1):
        raise AssertionError("held twice")


def test_it_can_be_taken_again_after_an_error(lock: Path) -> None:
    with pytest.raises(RuntimeError), exclusive(lock, print):
        raise RuntimeError
    with exclusive(lock, print, wait_seconds=-1):
        assert lock.exists()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="cannot be written to"), exclusive(tmp_path / "file" / "lock", print):
        raise AssertionError("locked nothing")
