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
KEPT_STEPS = 16
StepTimes = dict[object, list[float]]
"""Seconds of usual steps, by their work."""


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
    """Detector that receives steps, and says once what it has found."""

    def __init__(self, known: StepTimes | None = None) -> None:
        """`known`: of earlier jobs, so that one that is slow from its first step on is found; it is added to."""
        self._known = {} if known is None else known
        self._work: object = None
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
            self._work, self._slow = work, []
        if seconds is None:
            return None
        times = self._known.setdefault(work, [])
        usual = statistics.median(times) if len(times) >= USUAL_STEPS else None
        if usual is None or seconds < JUMP * usual or reading.free > FULL * reading.total:
            times[:] = [*times, seconds][-KEPT_STEPS:]
            self._slow.clear()
            return None
        self._slow.append(seconds)
        if len(self._slow) >= SLOW_STEPS:
            self.found = Spill(reading.reserved, reading.total, min(self._slow) / usual)
        return self.found
