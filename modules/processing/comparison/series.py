"""Images that were made elsewhere, side by side: what a comparison of precisions shows of a grid. Light to import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from PIL import Image


@dataclass(frozen=True)
class Measured:
    """The cost of an image. Sizes in bytes; `fp16_bytes` is what the weights would take in 16 bits."""

    storage: str = ""  # how the weights lay in memory, in words
    weight_bytes: int = 0
    fp16_bytes: int = 0
    seconds_per_step: float = 0.0  # 0: not known
    peak_memory_bytes: int | None = None


@dataclass
class Series:
    """The images of one precision, in the order of the other series' images."""

    name: str
    images: list[Image.Image] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)


@dataclass(frozen=True)
class SeriesReport:
    """A comparison: the first series is what the others are measured against, `captions` has a line for each image of
    a series, `model` names the checkpoint, and `made_with` says how the images were made."""

    series: Sequence[Series]
    captions: Sequence[str]
    model: str
    made_with: str = ""
