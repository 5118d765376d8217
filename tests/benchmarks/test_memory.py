"""The rows of the memory benchmark: what runs on a card runs here on tiny models, and says so without one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks import memory
from modules.memory.feed_forward import SplitOptions


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "REPEATS", 1)


@pytest.mark.parametrize("row", [name for name in memory.ROWS if name.endswith("GPU")])
def test_without_a_card_nothing_is_made_up(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert set(memory.ROWS.get(row)().values()) == {"not measured"}


def test_a_row_of_split_feed_forwards() -> None:
    cuts = {"normal": None, "2 slices": SplitOptions(num_splits=2), "64 tokens": SplitOptions(token_chunk=64)}
    row = memory.split_row("geglu", 32, 256, cuts, memory.Processor())
    assert row["goal"] == {"peak": 0.55, "time": 1.0} and row["normal"]["seconds"] > 0
    assert set(row["ours"]) == {"2 slices", "64 tokens"}
    for found in row["ours"].values():
        assert found["peak"] < 1 and found["time"] > 0 and found["largest_difference"] < 1e-5


class FakeEvent:
    """Half a second passes between each and the next."""

    count = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        FakeEvent.count += 1
        self.at = 500.0 * FakeEvent.count

    def elapsed_time(self, other: "FakeEvent") -> float:
        return other.at - self.at


def test_a_card_is_asked_for_its_peak_and_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def note(name: str, result: Any = None) -> Callable[..., Any]:
        return lambda *args, **kwargs: calls.append(name) or result

    for name in ("empty_cache", "reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, note(name))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", note("max", 77))
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    card = memory.Card(torch.device("cuda"))
    assert card.peak(torch.nn.Linear(1, 1), (), note("run")) == 77
    assert calls == ["empty_cache", "reset_peak_memory_stats", "run", "synchronize", "max"]
    calls.clear()
    assert card.seconds(note("run")) == 0.5
    assert calls == ["synchronize", "run", "synchronize"]
