"""Programs started by the set-up: output kept, no input, a sign of life."""

import sys

import pytest

from modules.setup import process
from modules.setup.process import Runner


def test_output_of_both_streams_and_status_are_kept() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    outcome = Runner({})([sys.executable, "-c", code])
    assert outcome.returncode == 3 and not outcome.ok
    assert "out" in outcome.output and "err" in outcome.output


def test_programs_get_no_input() -> None:
    assert Runner({})([sys.executable, "-c", "input()"]).returncode == 1


def test_a_missing_program_is_an_outcome() -> None:
    outcome = Runner({})(["/does/not/exist"])
    assert outcome.returncode == 127 and "/does/not/exist" in outcome.output


def test_a_long_run_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "HEARTBEAT_SECONDS", 0.05)
    lines: list[str] = []
    assert Runner({}, lines.append)([sys.executable, "-c", "import time; time.sleep(0.3); print('end')"]).ok
    assert lines and "still working" in lines[0]
