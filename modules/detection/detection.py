"""Detections in images, and what an extension that has detectors gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL import Image, ImageDraw

from modules.errors import UnknownNameError


@dataclass(frozen=True, eq=False)
class Detection:
    """`box`: left, top, right, bottom in pixels, within the image. `score` 0 to 1. `outline` is a mask ("L", 255: the
    thing) of the image's size, where the detector gives one."""

    box: tuple[float, float, float, float]
    score: float
    label: str = ""
    outline: Image.Image | None = None

    @property
    def area_px(self) -> float:
        """Area of the box."""
        return (self.box[2] - self.box[0]) * (self.box[3] - self.box[1])

    def mask(self, size_px: tuple[int, int]) -> Image.Image:
        """The outline, or else the box, as a mask ("L") of the image's size."""
        if self.outline is not None:
            return self.outline
        drawn = Image.new("L", size_px)
        ImageDraw.Draw(drawn).rectangle([round(value) for value in self.box], fill=255)
        return drawn


class Detectors(Protocol):
    """All detectors of an extension, by name."""

    @property
    def names(self) -> Sequence[str]:
        """The names that users choose from."""

    def check(self, name: str) -> str:
        """Return the name of a detector that can be used now, of any of its names. Raises `UnknownNameError`, and
        `CheckpointError` that says what to put where."""

    def find(self, image: Image.Image, name: str, min_score: float = 0.3) -> list[Detection]:
        """Return what a detector finds with at least this score (0 to 1), the best first. Raises as `check` does."""


class AllDetectors:
    """The detectors of several extensions: the first that knows a name is asked."""

    def __init__(self, each: Sequence[Detectors] = ()) -> None:
        self._each = tuple(each)

    @property
    def names(self) -> Sequence[str]:
        return tuple(name for one in self._each for name in one.names)

    def check(self, name: str) -> str:
        return self._of(name).check(name)

    def find(self, image: Image.Image, name: str, min_score: float = 0.3) -> list[Detection]:
        return self._of(name).find(image, name, min_score)

    def _of(self, name: str) -> Detectors:
        for one in self._each:
            try:
                one.check(name)
            except UnknownNameError:
                continue
            return one
        raise UnknownNameError.of("detector", name, self.names)
