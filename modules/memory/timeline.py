"""How much memory a piece of work took, stage by stage: a light sampler in a thread, exact peaks at stage borders.

Between two borders the peak of main memory comes from the kernel's own high-water mark (Linux) and that of a graphics
GPU from PyTorch's allocator, so that nothing short-lived is missed; the samples in between only draw the curve.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.system.devices import begin_peak as begin_device_peak
from modules.system.devices import main_memory_info, read_device, release_memory
from modules.system.threads import start_loop

if TYPE_CHECKING:
    import torch

MAX_SAMPLES = 400
INTERVAL_S = 0.1


@dataclass(frozen=True)
class Reading:
    """Bytes at one moment: of this process in main memory, and of PyTorch's allocator on the GPU. None: not known."""

    rss: int | None = None
    allocated: int | None = None
    reserved: int | None = None


@dataclass(frozen=True)
class Sample:
    """A reading `at_s` seconds after the beginning."""

    at_s: float
    stage: str
    now: Reading


@dataclass(frozen=True)
class StagePeak:
    """One stretch of one stage: when, the memory at its beginning, and the most during it."""

    stage: str
    begin_s: float
    end_s: float
    begin: Reading
    peak: Reading


@dataclass(frozen=True)
class MemoryRecord:
    """The finished timeline of one piece of work. `begin` is the reading before its first stage."""

    device: str
    begin: Reading
    stages: tuple[StagePeak, ...]
    samples: tuple[Sample, ...]

    def peak(self, stage: str | None = None) -> Reading:
        """The most memory of one stage (all its stretches), or of everything."""
        most = Reading()
        for item in self.stages:
            if stage in (None, item.stage):
                most = _most(most, item.peak)
        return most

    def summary(self) -> dict[str, dict[str, int | None]]:
        """The peak of each stage, in the order in which they first came."""
        return {stage: asdict(self.peak(stage)) for stage in dict.fromkeys(item.stage for item in self.stages)}

    def as_dict(self) -> dict[str, Any]:
        """For JSON: device, begin, peak, stages, samples (each a list [seconds, stage, rss, allocated, reserved])."""
        return {
            "device": self.device,
            "begin": asdict(self.begin),
            "peak": asdict(self.peak()),
            "stages": [
                {"stage": item.stage, "begin_s": item.begin_s, "end_s": item.end_s, **asdict(item.peak)}
                for item in self.stages
            ],
            "samples": [[s.at_s, s.stage, s.now.rss, s.now.allocated, s.now.reserved] for s in self.samples],
        }


class MemoryTimeline:
    """Records while it is open. `stage` may be called from the thread that works; the sampler has its own.

    On a GPU each border of stages starts the allocator's count of the peak again.
    """

    def __init__(self, device: torch.device, interval_s: float = INTERVAL_S) -> None:
        self._device = device
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples: list[Sample] = []
        self._stages: list[StagePeak] = []
        self._stage: str | None = None
        self._stage_began = 0.0
        self._stage_begin = Reading()
        self._stage_most = Reading()
        self._began = 0.0
        self._begin = Reading()

    def __enter__(self) -> MemoryTimeline:
        self._began = time.monotonic()
        self._begin = read_memory(self._device)
        self._thread = start_loop("featherweight-memory", self._sample_on)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._end_stage()

    def stage(self, name: str) -> None:
        """From here on the work is in this stage; the same name again goes on with it."""
        with self._lock:
            if name == self._stage:
                return
            self._end_stage()
            self._stage, self._stage_began, self._stage_most = name, self._now(), Reading()
            begin_peak(self._device)
            self._take()
            self._stage_begin = self._stage_most

    def record(self) -> MemoryRecord:
        """Return what is known so far, with the present stage up to now."""
        with self._lock:
            stages = list(self._stages)
            if self._stage is not None:
                stages.append(self._finished_stage(self._stage))
            return MemoryRecord(str(self._device), self._begin, tuple(stages), tuple(self._samples))

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """In this stage while open, then back in the one before. What that one has left behind and does not use goes
        back to the system first, so that it does not count twice."""
        import torch

        before = self._stage
        release_memory(torch.device("cpu"))
        self.stage(name)
        try:
            yield
        finally:
            if before is not None:
                self.stage(before)

    def _now(self) -> float:
        return round(time.monotonic() - self._began, 4)

    def _sample_on(self) -> bool:
        if self._over.wait(self._interval_s):
            return False
        with self._lock:
            self._take()
            if len(self._samples) >= MAX_SAMPLES:  # half as many from now on, over the whole time alike
                self._samples = self._samples[::2]
                self._interval_s *= 2
        return True

    def _take(self) -> None:
        now = read_memory(self._device)
        self._stage_most = _most(self._stage_most, now)
        self._samples.append(Sample(self._now(), self._stage or "", now))

    def _peak_of_stage(self) -> Reading:
        return _most(self._stage_most, read_peak(self._device))

    def _end_stage(self) -> None:
        if self._stage is None:
            return
        self._take()
        self._stages.append(self._finished_stage(self._stage))
        self._stage = None

    def _finished_stage(self, name: str) -> StagePeak:
        return StagePeak(name, self._stage_began, self._now(), self._stage_begin, self._peak_of_stage())


def read_memory(device: torch.device) -> Reading:
    """Read the memory that this process holds now."""
    rss = resident_bytes()
    gpu = read_device(device)
    return Reading(rss) if gpu is None else Reading(rss, gpu.allocated, gpu.reserved)


def begin_peak(device: torch.device, proc: Path = Path("/proc/self")) -> None:
    """Have the kernel and the GPU's allocator count their peaks from here."""
    if _can_begin_peak(proc):  # else, where it is not Linux, the samples have to do
        (proc / "clear_refs").write_text("5", encoding="ascii")
    begin_device_peak(device)


def read_peak(device: torch.device) -> Reading:
    """The most since `begin_peak`; main memory's is None where the kernel does not tell it apart from before."""
    rss = _status_bytes("VmHWM") if _can_begin_peak() else None
    gpu = read_device(device)
    return Reading(rss) if gpu is None else Reading(rss, gpu.peak, gpu.peak_reserved)


def resident_bytes() -> int | None:
    """Main memory of this process; None where the system does not say."""
    found = _status_bytes("VmRSS")
    used = main_memory_info()["ram"].get("used") if found is None else found
    return used if isinstance(used, int) else None


def _status_bytes(field: str, proc: Path = Path("/proc/self")) -> int | None:
    try:
        lines = (proc / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)


def _can_begin_peak(proc: Path = Path("/proc/self")) -> bool:
    return os.access(proc / "clear_refs", os.W_OK)


def _most(first: Reading, second: Reading) -> Reading:
    return Reading(
        _largest((first.rss, second.rss)),
        _largest((first.allocated, second.allocated)),
        _largest((first.reserved, second.reserved)),
    )


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
