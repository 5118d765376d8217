"""`modules.timer`: how long parts of a start take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Timer:
    """Takes the time between calls of `record`."""

    def __init__(self, print_log: bool = False) -> None:
        self.start = self._last = time.time()
        self.records: dict[str, float] = {}
        self.total = 0.0
        self.base_category = ""
        self.print_log = print_log
        self.subcategory_level = 0

    def elapsed(self) -> float:
        """Seconds since the last call."""
        now = time.time()
        since, self._last = now - self._last, now
        return since

    def record(self, category: str, extra_time: float = 0) -> None:
        """Add the time since the last call to a part."""
        self.records[category] = self.records.get(category, 0.0) + self.elapsed() + extra_time
        self.total = sum(self.records.values())

    @contextmanager
    def subcategory(self, name: str) -> Iterator[None]:
        """While open, a part of its own."""
        yield
        self.record(name)

    def summary(self) -> str:
        """All of it in one line."""
        return f"{self.total:.1f}s ({', '.join(f'{name}: {value:.1f}s' for name, value in self.records.items())})"

    def dump(self) -> dict[str, Any]:
        """For JSON."""
        return {"total": self.total, "records": self.records}

    def reset(self) -> None:
        """Start counting from zero again."""
        self.__init__()  # type: ignore[misc]


startup_timer = Timer()
startup_record: dict[str, Any] | None = None
