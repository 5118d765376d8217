"""Finding out that a GPU driver has moved memory of the program to main memory.

Drivers on Windows (and under WSL) answer an allocation that no longer fits with main memory in place of an error
(NVIDIA's "CUDA - Sysmem Fallback Policy"), over which a step takes many times as long. Nothing says so, but two
readings give it away: more is reserved than the device has, or the device is full and the same step suddenly is slow.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from modules.system.devices import DeviceReading

FULL = 0.03  # a device with less than this share free is full
JUMP = 3.0  # times the usual time of a step
SLOW_STEPS = 2  # one alone may have waited for something else
USUAL_STEPS = 3


@dataclass(frozen=True)
class Spill:
    """The signs of a spill. `slower`: how many times as long as before a step took; None: the bytes showed it."""

    reserved: int
    total: int
    slower: float | None = None

    @property
    def notice(self) -> str:
        """Return what has happened, and what to do."""
        size = f"{self.reserved / 1e9:.1f} GB are reserved on a GPU of {self.total / 1e9:.1f} GB"
        seen = size if self.slower is None else f"{size}, and a step took {self.slower:.0f} times as long as before"
        return (
            f"The GPU's driver seems to have moved memory to main memory, which is slow: {seen}. Set VRAM headroom in "
            "Settings > Optimizations to 1 GB or more, or Stream weights; or choose Prefer No Sysmem Fallback for "
            "Python in the NVIDIA Control Panel (CUDA - Sysmem Fallback Policy), so that weights are streamed instead."
        )


class SpillDetector:
    """Receives steps, and says once what it has found."""

    def __init__(self) -> None:
        self._work: object = None
        self._usual: list[float] = []
        self._slow: list[float] = []
        self.found: Spill | None = None

    def step(self, work: object, seconds: float | None, reading: DeviceReading) -> Spill | None:
        """A step took `seconds` (None: not known); only times of equal `work` are compared, in a row. The finding,
        the first time there is one."""
        if self.found is not None:
            return None
        if reading.reserved > reading.total:
            self.found = Spill(reading.reserved, reading.total)
            return self.found
        if work != self._work:
            self._work, self._usual, self._slow = work, [], []
        if seconds is None:
            return None
        usual = statistics.median(self._usual) if len(self._usual) >= USUAL_STEPS else None
        if usual is None or seconds < JUMP * usual or reading.free > FULL * reading.total:
            self._usual.append(seconds)
            self._slow.clear()
            return None
        self._slow.append(seconds)
        if len(self._slow) >= SLOW_STEPS:
            self.found = Spill(reading.reserved, reading.total, min(self._slow) / usual)
        return self.found
