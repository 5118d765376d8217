"""How long a step of a job will take on this machine: what the denoiser computes, over the machine's measured speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from modules.memory.work import Work

MINUTE_S, HOUR_S = 60, 3600


@dataclass(frozen=True)
class StepWork:
    """The work of a step on `device`, and how many `steps` an image of this size takes."""

    work: Work
    steps: int
    width_px: int
    height_px: int
    device: torch.device
    compute_dtype: torch.dtype

    def timed(self) -> StepTime | None:
        """On this machine, measured now; None where the device cannot be measured."""
        from modules.memory.work import measure_speed

        try:
            speed = measure_speed(self.device, self.compute_dtype)
        except RuntimeError:  # memory that others hold, or an operation that this device lacks
            return None
        return StepTime(self.work.seconds(speed), self.steps, self.width_px, self.height_px)


@dataclass(frozen=True)
class StepTime:
    """An estimate: seconds per step, and how many `steps` an image of this size takes."""

    seconds: float
    steps: int
    width_px: int
    height_px: int

    @property
    def line(self) -> str:
        """For people: "about 20 s per step, 3 min for 8 steps at 512x512"."""
        whole = f"{duration(self.seconds * self.steps)} for {self.steps} steps at {self.width_px}x{self.height_px}"
        return f"about {duration(self.seconds)} per step, {whole}"

    @property
    def reply(self) -> dict[str, Any]:
        """Return the time as JSON."""
        return {
            "seconds": self.seconds,
            "steps": self.steps,
            "width": self.width_px,
            "height": self.height_px,
            "line": self.line,
        }


def duration(seconds: float) -> str:
    """A time that is only roughly known, with one or two digits: "0.3 s", "20 s", "3 min", "5 h"."""
    if seconds < 1:
        return f"{max(seconds, 0.01):.1g} s"
    if seconds < 100:
        return f"{_two_digits(seconds)} s"
    if seconds < 100 * MINUTE_S:
        return f"{_two_digits(seconds / MINUTE_S)} min"
    return f"{_two_digits(seconds / HOUR_S)} h"


def _two_digits(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 3 else f"{value:.0f}"
