"""Formats without a scale: each number is rounded to the nearest of the format.

`fp8_e4m3fn` is the reference UI's fp8 mode (its pull request 14031): weights go through fp16, then to the nearest
e4m3 number. Beyond +-448 ours takes the largest number, where a bare cast gives NaN.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from modules.memory.formats.decoding import decode_narrow
from modules.memory.formats.format import (
    FORMATS,
    Encoded,
    Rows,
    WeightRows,
    finite_peak,
    row_count,
    row_width,
    slice_rows,
    slices,
)


@dataclass(frozen=True)
class PlainFormat:
    """Numbers of `dtype` as they are. `through`: rounded to this dtype first, as others do."""

    name: str
    dtype: torch.dtype
    through: torch.dtype | None = None
    scaled: bool = False

    def encode(self, weight: Tensor) -> Encoded:
        return Encoded(weight) if weight.dtype == self.dtype else self.encode_rows(WeightRows(weight))

    def encode_rows(self, rows: Rows) -> Encoded:
        """See `StorageFormat`; 8 bits by way of float32: the processor casts that nine times as fast as float16."""
        count, width = row_count(rows.shape), row_width(rows.shape)
        data = torch.empty((count, width), dtype=self.dtype, device=rows.device)
        wide = torch.empty((slice_rows(rows), width), dtype=torch.float32, device=rows.device)
        largest = torch.finfo(self.dtype).max
        saturated = 0
        for where, part in slices(rows):
            if finite_peak(part.float() if part.element_size() == 1 else part) > largest:
                saturated += int((part.abs() > largest).sum())
                part = part.clamp(-largest, largest)
            data[where] = part if self.through is None else wide[: len(part)].copy_(part.to(self.through))
        return Encoded(data.reshape(rows.shape), saturated=saturated)

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
        assert scale is None, f"{self.name} has no scale"
        return decode_narrow(data, None, out) if data.element_size() == 1 else out.copy_(data)


for _format in (
    PlainFormat("fp32", torch.float32),
    PlainFormat("fp16", torch.float16),
    PlainFormat("bf16", torch.bfloat16),
    PlainFormat("fp8_e4m3fn", torch.float8_e4m3fn, through=torch.float16),
    PlainFormat("fp8_e5m2", torch.float8_e5m2, through=torch.float16),
):
    FORMATS.add(_format.name, _format)
