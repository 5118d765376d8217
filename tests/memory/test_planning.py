"""Corrections learnt from real runs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.memory.planning import KEPT, Corrections, Observation, corrected

MB = 1_000_000


def test_without_runs_the_prediction_and_what_is_known_to_come_on_top() -> None:
    assert Corrections().correct(["cpu/decode"], 100 * MB, extra=20 * MB) == 120 * MB


def test_after_one_run_the_same_work_is_what_it_was_and_other_work_is_shifted() -> None:
    known = Corrections()
    known.learn(["k"], 100 * MB, 150 * MB)
    assert known.correct(["k"], 100 * MB) == 150 * MB
    assert known.correct(["k"], 200 * MB) == 250 * MB
    assert known.correct(["other"], 100 * MB) == 100 * MB


def test_after_two_runs_a_third_size_is_predicted() -> None:
    known = Corrections()
    for size in (100, 400):
        known.learn(["k"], size * MB, round(1.3 * size * MB) + 40 * MB)
    assert known.correct(["k"], 900 * MB) == pytest.approx(1210 * MB, rel=1e-6)
    assert known.count("k") == 2


def test_kin_helps_where_nothing_nearer_is_known() -> None:
    known = Corrections()
    known.learn(["cpu/fp8", "cpu"], 100 * MB, 150 * MB)
    assert known.correct(["cpu/int8", "cpu"], 100 * MB) == 150 * MB
    known.learn(["cpu/int8", "cpu"], 100 * MB, 200 * MB)
    assert known.correct(["cpu/int8", "cpu"], 100 * MB) == 200 * MB


def test_old_runs_are_forgotten() -> None:
    known = Corrections()
    for _ in range(KEPT):
        known.learn(["k"], 100 * MB, 300 * MB)
    for _ in range(KEPT):
        known.learn(["k"], 100 * MB, 120 * MB)
    assert (known.correct(["k"], 100 * MB), known.count("k")) == (120 * MB, KEPT)


def test_kept_on_disk_and_a_broken_file_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cache" / "memory.json"
    Corrections(path).learn(["k"], 10, 15)
    assert Corrections(path).correct(["k"], 10) == 15
    for content in ("{", '{"version": 1, "observations": [3]}', '{"version": 1, "observations": {"k": [[1]]}}'):
        path.write_text(content, encoding="utf-8")
        assert Corrections(path).correct(["k"], 10) == 10
    assert "started again" in caplog.text
    path.write_text('{"version": 99}', encoding="utf-8")
    assert Corrections(path).correct(["k"], 10) == 10


def test_a_file_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    known = Corrections(tmp_path / "file" / "memory.json")
    known.learn(["k"], 10, 15)
    assert known.correct(["k"], 10) == 15
    assert "could not be written" in caplog.text


sizes = st.integers(0, 10**12)


@given(st.lists(st.builds(Observation, sizes, sizes), min_size=1, max_size=8), sizes)
def test_never_negative(known: list[Observation], predicted: int) -> None:
    assert corrected(known, predicted) >= 0
