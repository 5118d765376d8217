"""The interface of a storage format: how a weight is kept in fewer bits, and how it is decoded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from modules.errors import InvalidValueError
from modules.memory.formats.catalog import FORMAT_SPECS
from modules.memory.scratch import scratch


@dataclass(frozen=True)
class Encoded:
    """A weight as it is kept: `data` in the format's dtype and the weight's shape (of packed formats: its bytes by
    rows, see `modules.memory.formats.blocks`).

    `scale` is float32 with one scale per row (the weight's first dimension), or None for formats without scales.
    `saturated` counts the weights beyond the format's range that were set to its largest value. `storage` is the
    format that `data` is in, where one was chosen for this weight; None: the one that was asked for.
    """

    data: Tensor
    scale: Tensor | None = None
    saturated: int = 0
    storage: StorageFormat | None = None


class Rows(Protocol):
    """A floating-point weight that can be read in slices of its first dimension, wherever it is.

    One that is read from a file need never be in memory as a whole then.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def read(self, begin: int, end: int) -> Tensor:
        """The rows [end - begin, elements of one], contiguous; to be used before the next call and not written to."""


class WeightRows:
    """`Rows` of a tensor; one without dimensions is a single row."""

    def __init__(self, weight: Tensor) -> None:
        self.shape: tuple[int, ...] = tuple(weight.shape)
        self.dtype = weight.dtype
        self.device = weight.device
        self._rows = weight.reshape(row_count(self.shape), row_width(self.shape))

    def read(self, begin: int, end: int) -> Tensor:
        return self._rows[begin:end]


class StorageFormat(Protocol):
    """An entry of `FORMATS`."""

    @property
    def name(self) -> str:
        """The name in settings, infotexts and metadata of files."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the kept data."""

    @property
    def scaled(self) -> bool:
        """Whether a scale accompanies the data."""

    def encode(self, weight: Tensor) -> Encoded:
        """Keep a floating-point weight of any shape. Raises `InvalidValueError` for NaN and infinity."""

    def encode_rows(self, rows: Rows) -> Encoded:
        """Encode a weight that is read in slices; never hold more of it than one slice."""

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
        """Write the weight into `out` (contiguous, the shape of `data`, a floating dtype of 16 bits or more)."""


class StorageFormats:
    """The storage formats by name, behind the rows of `modules.memory.formats.catalog`.

    Lookups ignore case; an unknown name raises `UnknownNameError` that lists the known ones."""

    def get(self, name: str) -> StorageFormat:
        """The format of this name."""
        return _loaded(FORMAT_SPECS.get(name).entry)

    def canonical(self, name: str) -> str:
        """The name as the catalog has it."""
        return FORMAT_SPECS.canonical(name)

    def __contains__(self, name: object) -> bool:
        return name in FORMAT_SPECS

    def __iter__(self) -> Iterator[str]:
        return iter(FORMAT_SPECS)


@cache
def _loaded(entry: str) -> StorageFormat:
    module, name = entry.split(":")
    found: StorageFormat = getattr(import_module(module), name)
    return found


FORMATS = StorageFormats()

SLICE_ELEMENTS = 1 << 19
"""Of a slice on the CPU: its 16 bits, their float32 and their 8 bits stay in the caches, and there are few enough
slices that threads do not wait for each other between them."""
LARGE_SLICE_ELEMENTS = 1 << 24
"""On a GPU, where each step costs a launch."""


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a dtype: "fp16", "bf16", "fp32"."""
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")


def row_count(shape: tuple[int, ...]) -> int:
    """Rows of a weight of this shape."""
    return shape[0] if shape else 1


def row_width(shape: tuple[int, ...]) -> int:
    """Elements of one row of a weight of this shape."""
    return math.prod(shape[1:])


def slice_rows(rows: Rows) -> int:
    """How many rows make a slice, at least one."""
    elements = SLICE_ELEMENTS if rows.device.type == "cpu" else LARGE_SLICE_ELEMENTS
    return max(1, min(row_count(rows.shape), elements // max(1, row_width(rows.shape))))


def wide_slice(rows: Rows) -> Tensor:
    """Room for a slice in float32 [rows, elements of one]; the same memory for every weight that a thread encodes."""
    shape = (slice_rows(rows), row_width(rows.shape))
    if rows.device.type == "cpu":
        return scratch(shape, torch.float32, "wide")
    return torch.empty(shape, dtype=torch.float32, device=rows.device)


def slices(rows: Rows) -> Iterator[tuple[slice, Tensor]]:
    """Where each slice is among the rows, and the slice; none of a weight without elements."""
    count, step = row_count(rows.shape), slice_rows(rows)
    if not row_width(rows.shape):
        return
    for begin in range(0, count, step):
        end = min(begin + step, count)
        yield slice(begin, end), rows.read(begin, end)


BITS = {2: (torch.int16, 0x7FFF), 4: (torch.int32, 0x7FFFFFFF), 8: (torch.int64, 0x7FFFFFFFFFFFFFFF)}
"""By bytes of a floating-point number: the integers that order magnitudes as the numbers do, and all bits but the
sign. NaN is beyond infinity there."""


def row_peaks(part: Tensor) -> Tensor:
    """The largest magnitude of each row [rows] as float32, NaN where a row holds one."""
    if part.element_size() == 1:
        return part.float().abs().amax(dim=1)
    integers, magnitude = BITS[part.element_size()]
    return (part.view(integers) & magnitude).amax(dim=1).view(part.dtype).float()


def finite_peak(weight: Tensor) -> float:
    """The largest magnitude of a weight; raises `InvalidValueError` if any element is NaN or infinite."""
    if weight.numel() == 0:
        return 0.0
    low, high = torch.aminmax(weight)
    peak = max(abs(float(low)), abs(float(high)))
    if not peak < float("inf"):
        raise InvalidValueError(
            "it holds NaN or infinite values. The file is damaged, or its training diverged: use another copy."
        )
    return peak


def checked_slices(rows: Rows) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """`slices`, each with the largest magnitude of each of its rows, float32 [n]. Raises `InvalidValueError` if any
    element is NaN or infinite."""
    for where, part in slices(rows):
        peaks = row_peaks(part)
        finite_peak(peaks)
        yield where, part, peaks


def empty_rows(rows: Rows, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return empty storage for a weight, [rows, width], and scales of 1, float32 [rows]."""
    count, width = row_count(rows.shape), row_width(rows.shape)
    data = torch.empty((count, width), dtype=dtype, device=rows.device)
    return data, torch.ones(count, dtype=torch.float32, device=rows.device)


def by_row(scale: Tensor, ndim: int) -> Tensor:
    """A scale [rows] (or a single number) in a shape that multiplies a weight of `ndim` dimensions."""
    return scale.reshape(-1, *(1,) * (ndim - 1)) if ndim else scale.reshape(())
