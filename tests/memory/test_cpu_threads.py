"""Threads that compute: the fastest number of them, fewer where that is as good, before all what was asked for."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from modules.memory.cpu_threads import ChosenThreads, CpuThreads, milliseconds_with, use_threads, waited_s
from modules.system.cores import Cores

CORES = Cores(8, 4)
NOTHING: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def never(threads: int) -> float:
    raise AssertionError("nothing is to be measured")


def quiet() -> float:
    return 0.0


@pytest.mark.parametrize(
    ("times", "expected"), [({2: 9.0, 4: 5.0, 8: 7.0}, 4), ({2: 9.0, 4: 5.1, 8: 5.0}, 4), ({2: 9.0, 4: 6.0, 8: 5.0}, 8)]
)
def test_the_fastest_number_is_used(times: dict[int, float], expected: int) -> None:
    chosen = use_threads(0, None, CORES, times.__getitem__, NOTHING)
    assert (chosen.count, torch.get_num_threads()) == (expected, expected)
    assert chosen.milliseconds == times


def test_it_is_measured_once_for_a_machine(tmp_path: Path) -> None:
    file = tmp_path / "threads.json"
    use_threads(0, file, CORES, {2: 1.0, 4: 3.0, 8: 5.0}.__getitem__, NOTHING, quiet, quiet)
    assert use_threads(0, file, CORES, never, NOTHING).count == 2
    (answer,) = json.loads(file.read_text(encoding="utf-8")).values()
    assert answer == {"threads": 2, "milliseconds": {"2": 1.0, "4": 3.0, "8": 5.0}}
    other = use_threads(0, file, Cores(8, 4, 2.0), {1: 1.0, 2: 9.0}.__getitem__, NOTHING, quiet, quiet)
    assert other.count == 1 and len(json.loads(file.read_text(encoding="utf-8"))) == 2


def test_what_is_measured_beside_others_is_measured_again_in_a_quiet_moment(tmp_path: Path) -> None:
    file, busy = tmp_path / "threads.json", [3.0]
    times = {2: 1.0, 4: 3.0, 8: 5.0}

    def load() -> float:
        return busy[0]

    def choose() -> ChosenThreads:
        return use_threads(0, file, CORES, times.__getitem__, NOTHING, load)

    threads = CpuThreads(choose, load, CORES)
    assert threads.chosen.count == 2 and "others computed" in threads.chosen.reason
    (answer,) = json.loads(file.read_text(encoding="utf-8")).values()
    assert answer["doubted"]  # for people to see; the next start measures again
    times[2] = 9.0
    assert not threads.try_again() and threads.chosen.count == 2  # still busy
    busy[0] = 0.0
    assert threads.try_again()
    assert (threads.chosen.count, torch.get_num_threads()) == (4, 4)
    assert use_threads(0, file, CORES, never, NOTHING).count == 4  # remembered
    times[8] = 0.1
    assert threads.try_again() and threads.chosen.count == 4  # once is enough


def test_a_busy_second_costs_all_numbers_of_threads_the_same() -> None:
    calls: list[int] = []

    def measure(threads: int) -> float:
        calls.append(threads)
        slow = 50.0 if len(calls) <= 3 else 0.0  # somebody else computes during the first round
        return slow + {2: 9.0, 4: 5.0, 8: 7.0}[threads]

    assert use_threads(0, None, CORES, measure, NOTHING).count == 4
    assert calls[:6] == [2, 4, 8, 2, 4, 8]


def test_threads_that_waited_for_a_core_are_doubted_however_quiet_the_last_minute_was(tmp_path: Path) -> None:
    file, waited = tmp_path / "threads.json", iter([0.0, 1e6])
    chosen = use_threads(0, file, CORES, {2: 1.0, 4: 3.0, 8: 5.0}.__getitem__, NOTHING, quiet, lambda: next(waited))
    assert chosen.is_doubted and chosen.count == 2
    again = use_threads(0, file, CORES, {2: 9.0, 4: 3.0, 8: 5.0}.__getitem__, NOTHING, quiet, quiet)
    assert not again.is_doubted and again.count == 4  # what was doubted is not taken from the file


def test_a_container_is_quiet_beside_the_others_of_a_large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    times = {1: 9.0, 2: 5.0}.__getitem__
    assert not use_threads(0, None, Cores(64, 32, 2.0), times, NOTHING, lambda: 40.0, quiet).is_doubted
    assert use_threads(0, None, Cores(64, 32, 2.0), times, NOTHING, lambda: 63.0, quiet).is_doubted


def test_waiting_is_read_from_all_threads(tmp_path: Path) -> None:
    for number, text in enumerate(("1 2000000000 3", "4 500000000 6", "", "not told")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "schedstat").write_text(text, encoding="ascii")
    assert waited_s(tmp_path) == 2.5 and waited_s(tmp_path / "none") == 0.0
    assert waited_s() >= 0.0


@pytest.mark.parametrize("nonsense", ["many", "-1", "0", "\u00b2"])
def test_nonsense_that_is_asked_for_is_said_and_measured_instead(
    nonsense: str, caplog: pytest.LogCaptureFixture
) -> None:
    times = {2: 9.0, 4: 5.0, 8: 7.0}.__getitem__
    assert use_threads(0, None, CORES, times, {"OMP_NUM_THREADS": nonsense}).count == 4
    assert "which is no number of threads" in caplog.text


def test_more_threads_than_cores_are_as_many_as_cores(caplog: pytest.LogCaptureFixture) -> None:
    assert use_threads(0, None, CORES, never, {"OMP_NUM_THREADS": "100000"}).count == 8
    assert "more than there are cores" in caplog.text


@pytest.mark.parametrize(("times", "rounds"), [({2: 9.0, 4: 5.0, 8: 7.0}, 2), ({2: 9.0, 4: 5.0, 8: 5.5}, 4)])
def test_what_is_clear_is_not_tried_for_long(times: dict[int, float], rounds: int) -> None:
    calls: list[int] = []
    use_threads(0, None, CORES, lambda count: calls.append(count) or times[count], NOTHING)
    assert len(calls) == 3 * rounds


def test_what_is_asked_for_is_not_measured() -> None:
    assert use_threads(3, None, CORES, never, {"OMP_NUM_THREADS": "1"}).count == 3
    chosen = use_threads(0, None, CORES, never, {"OMP_NUM_THREADS": "2"})
    assert chosen.count == 2 and "OMP_NUM_THREADS" in chosen.reason
    assert use_threads(0, None, Cores(1, 1), never, {"OMP_NUM_THREADS": "many"}).count == 1


def test_a_damaged_file_and_one_that_cannot_be_written_are_no_obstacle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "threads.json"
    file.write_text("{", encoding="utf-8")
    assert use_threads(0, file, CORES, float, NOTHING).count == 2
    missing = tmp_path / "file" / "threads.json"
    missing.parent.write_text("no folder", encoding="utf-8")
    assert use_threads(0, missing, CORES, float, NOTHING, quiet).count == 2
    assert "could not be remembered" in caplog.text


def test_a_time_is_taken() -> None:
    assert milliseconds_with(1) > 0 and torch.get_num_threads() == 1
