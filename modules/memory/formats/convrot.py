"""`int8_convrot`: int8 with one scale per row, of weights that are rotated where that makes the error smaller.

A scale per row is as large as the row's largest weight. Where a row has outliers the others are left with few of the
127 steps; rotated in groups along the input (`modules.memory.formats.rotation`) the outlier is shared out, and the
error of a Gaussian row, 0.8 %, holds for every row. Where there are none, the rotation makes the row Gaussian and loses
a little. So both are made and the better one is kept, for each layer. Rotated are weights of linear layers whose input
is a multiple of the group; others, convolutions among them, are `int8_row`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from modules.memory.formats.decoding import decode_narrow
from modules.memory.formats.format import (
    SLICE_ELEMENTS,
    Encoded,
    Rows,
    WeightRows,
    by_row,
    checked_slices,
    empty_rows,
    wide_slice,
)
from modules.memory.formats.rotation import GROUP, can_rotate, rotate
from modules.memory.formats.rowwise import INT8_ROW, RowFormat

MIN_GAIN = 0.95
"""The rotated weight's error over the plain one's from which on it is worth the time that a rotation takes."""
LARGEST = 127.0


@dataclass(frozen=True)
class RotatedRowFormat:
    """A weight [rows, inputs] that is rotated in groups of `group` along its inputs, then stored with a scale per row.

    The scale is float32 as it comes: a weight that is rotated back is rounded once more in any case."""

    name: str = "int8_convrot"
    dtype: torch.dtype = torch.int8
    scaled: bool = True
    group: int = GROUP

    def encode(self, weight: Tensor) -> Encoded:
        """See `StorageFormat`."""
        return self.encode_rows(WeightRows(weight))

    def encode_rows(self, rows: Rows) -> Encoded:
        """See `StorageFormat`. The weight has two dimensions, the second a multiple of the group."""
        encoded, _ = _rotated(rows, self.group, None)
        return replace(encoded, storage=self)

    def rotated(self, weight: Tensor) -> Tensor:
        """The weight as its rows are stored, float32."""
        return rotate(weight.float(), self.group)

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
        """See `StorageFormat`. `data` may be some of the rows, and of those whole groups."""
        assert scale is not None, f"{self.name} needs its scale"
        factor = by_row(scale.float(), data.ndim)
        if data.device.type != "cpu" or torch.compiler.is_compiling():
            return out.copy_(rotate(data.float() * factor, self.group))
        if data.numel() == 0:
            return out
        step = max(1, SLICE_ELEMENTS // data.shape[1])
        wide = torch.empty(min(step, len(data)), data.shape[1])
        for begin in range(0, len(data), step):
            part = data[begin : begin + step].contiguous()
            scales = factor if len(factor) == 1 else factor[begin : begin + step]
            out[begin : begin + step] = rotate(decode_narrow(part, scales, wide[: len(part)]), self.group)
        return out


@dataclass(frozen=True)
class BestRowFormat:
    """Encodes in `rotated` or `plain`, whichever is closer to the weight; `Encoded.storage` says which it was.

    No layer holds this format: what it stores is in one of the two."""

    name: str
    rotated: RotatedRowFormat
    plain: RowFormat
    dtype: torch.dtype = torch.int8
    scaled: bool = True

    def encode(self, weight: Tensor) -> Encoded:
        """See `StorageFormat`."""
        return self.encode_rows(WeightRows(weight))

    def encode_rows(self, rows: Rows) -> Encoded:
        """See `StorageFormat`. The weight is read once."""
        if len(rows.shape) != 2 or not can_rotate(rows.shape[1], self.rotated.group):
            return replace(self.plain.encode_rows(rows), storage=self.plain)
        both = _Both(self.plain, rows)
        rotated, error = _rotated(rows, self.rotated.group, both)
        if error < both.error * MIN_GAIN**2:
            return replace(rotated, storage=self.rotated)
        return Encoded(both.data.reshape(rows.shape), both.scale, storage=self.plain)

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
        """Decode a weight on the meta device; a real one is decoded by what `Encoded.storage` says."""
        assert data.is_meta, f"which of two formats a weight in {self.name} is in is known to its layer"
        return self.plain.decode(data, scale, out)


class _Both:
    """The plain encoding made as well, with the sum of the squares of its errors."""

    def __init__(self, plain: RowFormat, rows: Rows) -> None:
        self.plain = plain
        self.data, self.scale = empty_rows(rows, plain.dtype)
        self.error = 0.0

    def take(self, where: slice, wide: Tensor, peaks: Tensor) -> None:
        """Encode the rows `where`, float32 [n, width]."""
        scale = self.scale[where] = self.plain.scale_of(peaks)
        numbers = (wide / scale[:, None]).round_()
        self.data[where] = numbers
        self.error += _sum_of_squares(numbers.mul_(scale[:, None]).sub_(wide))


def _rotated(rows: Rows, group: int, plain: _Both | None) -> tuple[Encoded, float]:
    """The rotated rows encoded, with the sum of the squares of the errors (0 without `plain`, which is made too)."""
    data, scale = empty_rows(rows, torch.int8)
    room, error = wide_slice(rows), 0.0
    for where, part, peaks in checked_slices(rows):
        wide = room[: len(part)].copy_(part)
        if plain is not None:
            plain.take(where, wide, peaks)
        turned = rotate(wide, group)
        part_scale = turned.abs().amax(dim=1) / LARGEST
        scale[where] = part_scale = torch.where(part_scale > 0, part_scale, torch.ones_like(part_scale))
        numbers = (turned / part_scale[:, None]).round_().clamp_(-LARGEST, LARGEST)
        data[where] = numbers
        if plain is not None:
            error += _sum_of_squares(numbers.mul_(part_scale[:, None]).sub_(turned))
    return Encoded(data.reshape(rows.shape), scale), error


def _sum_of_squares(errors: Tensor) -> float:
    """Return the sum over `errors` [n, width], which are squared in place. Rows are added up on the CPU, in float64:
    not every device has that dtype."""
    return float(errors.square_().sum(dim=1).cpu().sum(dtype=torch.float64))


ROTATED = RotatedRowFormat()
BEST_ROW = BestRowFormat(ROTATED.name, ROTATED, INT8_ROW)
