"""The steps at which an adapter holds, as `start=`, `stop=` and `step=a-b` of a tag give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modules.errors import InvalidValueError

NAMES = ("start", "stop", "step")


@dataclass(frozen=True)
class StepRange:
    """The steps of a pass from `start` on and before `stop`; None: from its first, to its last. A value between 0 and 1
    is a share of the pass's steps.

    As in the extension LoRA Block Weight, whose images are to come out the same, this is compared with the step that
    the sampler has reported: so N steps are made without an adapter that starts at N, and N with one that stops at N;
    for the values 0 and 1 it is none in both cases.
    """

    start: float | None = None
    stop: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all steps are meant."""
        return self.start is None and self.stop is None

    def holds(self, reported: int, steps: int) -> bool:
        """Whether it holds at a call of the model, when the sampler has reported this step (from 0) of `steps`."""
        if self.start is not None and reported < _resolved(self.start, steps) - 1:
            return False
        return self.stop is None or reported < _resolved(self.stop, steps) - 1

    @classmethod
    def of(cls, named: Mapping[str, str]) -> StepRange:
        """Read what a tag names. Raises `InvalidValueError` for what is no step, and where the end is before the
        start."""
        start, stop = named.get("start"), named.get("stop")
        if "step" in named:
            first, dash, last = named["step"].partition("-")
            if not dash:
                raise InvalidValueError(f"step={named['step']}: it must be two steps, such as step=5-15.")
            start, stop = first, last
        found = cls(_number("start", start), _number("stop", stop))
        if found._is_empty:
            raise InvalidValueError(f"start={start} is not before stop={stop}: there is no step between them.")
        return found

    @property
    def _is_empty(self) -> bool:
        """Whether it holds at no step, as far as that is known before the pass: a share and a number cannot be
        compared."""
        if self.start is None or self.stop is None or (0 < self.start < 1) is not (0 < self.stop < 1):
            return False
        return self.start >= self.stop


ALL_STEPS = StepRange()


def _resolved(value: float, steps: int) -> int:
    """A number of steps."""
    return max(1, round(value * steps)) if 0 < value < 1 else int(value)


def _number(name: str, text: str | None) -> float | None:
    if text is None or not text.strip():
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise InvalidValueError(f"{name}={text}: it must be a step, or a share of all steps such as 0.4.") from error
    if not 0 <= value < 1e9:
        raise InvalidValueError(f"{name}={text}: it must be a step from 0 on, or a share of all steps such as 0.4.")
    return value
