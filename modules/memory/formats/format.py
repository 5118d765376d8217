"""What a storage format is: how a weight is kept in fewer bits, and how it becomes a weight again."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from modules.errors import InvalidValueError
from modules.registry import Registry


@dataclass(frozen=True)
class Encoded:
    """A weight as it is kept: `data` in the format's dtype and the weight's shape.

    `scale` is float32 with one number a row (the weight's first dimension), or None for formats without scales.
    `saturated` counts the weights beyond the format's range that were set to its largest value.
    """

    data: Tensor
    scale: Tensor | None = None
    saturated: int = 0


class StorageFormat(Protocol):
    """An entry of `FORMATS`."""

    @property
    def name(self) -> str:
        """As settings, infotexts and file metadata call it."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the kept data."""

    @property
    def scaled(self) -> bool:
        """Whether a scale accompanies the data."""

    def encode(self, weight: Tensor) -> Encoded:
        """Keep a floating-point weight of any shape. Raises `InvalidValueError` for NaN and infinity."""

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
        """Write the weight into `out` (contiguous, the shape of `data`, a floating dtype of 16 bits or more)."""


FORMATS: Registry[StorageFormat] = Registry("storage format")


def finite_peak(weight: Tensor) -> float:
    """The largest magnitude of a weight; raises `InvalidValueError` if any element is NaN or infinite."""
    if weight.numel() == 0:
        return 0.0
    low, high = torch.aminmax(weight)
    peak = max(abs(float(low)), abs(float(high)))
    if not peak < float("inf"):
        raise InvalidValueError(
            "it holds NaN or infinite numbers. The file is damaged, or was trained to pieces: use another copy."
        )
    return peak


def by_row(scale: Tensor, ndim: int) -> Tensor:
    """A scale [rows] (or a single number) in a shape that multiplies a weight of `ndim` dimensions."""
    return scale.reshape(-1, *(1,) * (ndim - 1)) if ndim else scale.reshape(())
