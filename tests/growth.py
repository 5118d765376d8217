"""Whether work grows with its input and no faster: told by ratios, so that a busy machine makes no difference."""

import time
from collections.abc import Callable

SHORT, LONG = 25_000, 100_000  # characters
MOST = 9.0  # four times the text takes four times as long; where time grows with the square, sixteen times
NOTHING_SECONDS = 0.5  # less says nothing: what grows with the square takes many seconds for the long text


def assert_linear(work: Callable[[str], object], unit: str) -> None:
    """Give `work` a text of this unit, repeated, and one four times as long."""
    long = _seconds(work, unit * (LONG // len(unit)))
    if long < NOTHING_SECONDS:
        return
    ratio = long / _seconds(work, unit * (SHORT // len(unit)))
    assert ratio < MOST, f"four times the text took {ratio:.1f} times as long ({long:.2f} s)"


def _seconds(work: Callable[[str], object], text: str) -> float:
    """The quicker of two runs."""
    times = []
    for _ in range(2):
        began = time.process_time()
        work(text)
        times.append(time.process_time() - began)
    return min(times)
