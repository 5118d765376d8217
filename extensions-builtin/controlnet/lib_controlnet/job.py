"""Job of a preprocessor: an image, and the numbers that it takes. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib_controlnet.pixels import Pixels


@dataclass(frozen=True)
class Slider:
    """A number that a module takes. `value` is its default."""

    name: str
    low: float
    high: float
    value: float
    step: float = 0.01

    def read(self, given: float) -> float:
        """The value that counts: one outside of the range, as -1 on purpose, stands for the default."""
        return given if self.low <= given <= self.high else self.value


RESOLUTION = Slider("Resolution", 64, 2048, 512, 8)
UNUSED = Slider("", 0.0, 1.0, 0.5)
"""What infotexts say of a number that a module does not take."""


Detect = Callable[[Any, str, float], Sequence[Any]]
"""(image, name of a detector, least score) -> what it finds."""


@dataclass(frozen=True)
class Job:
    """Job of a module: the image [H,W,3] (or [H,W,4], with transparency), the numbers that count, and the seed of
    the request. `side` is the short side to work at. `find` gives a file of weights by its names, or raises
    `InvalidValueError`; `poses` takes what is found of people, for callers; `detect` asks the
    detectors of the program for things in an image."""

    image: Pixels
    side: int
    a: float
    b: float
    seed: int = 0
    find: Callable[[Sequence[str]], Path] = field(default=lambda names: Path(names[0]))
    poses: list[Any] = field(default_factory=list)
    detect: Detect = field(default=lambda image, name, least: ())


Make = Callable[[Job], Pixels]
