"""Formats without a scale: each number is rounded to the nearest of the format.

`fp8_e4m3fn` is the reference UI's fp8 mode (its pull request 14031): weights go through fp16, then to the nearest
e4m3 number. Beyond +-448 ours takes the largest number, where a bare cast gives NaN.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from modules.memory.formats.decoding import decode_narrow
from modules.memory.formats.format import (
    Encoded,
    Rows,
    WeightRows,
    finite_peak,
    row_count,
    row_width,
    slices,
    wide_slice,
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
        """See `StorageFormat`; 8 bits by way of float32: the CPU casts that nine times as fast as float16."""
        data = torch.empty((row_count(rows.shape), row_width(rows.shape)), dtype=self.dtype, device=rows.device)
        wide = None if self.through is None else wide_slice(rows)
        saturated = 0
        for where, part in slices(rows):
            target, numbers = data[where], None if wide is None else wide[: len(part)]
            if numbers is not None:
                target.copy_(numbers.copy_(part.to(self.through)))
                if _is_below_largest(target):
                    continue
            saturated += _write_clamped(part, self.through, numbers, target)
        return Encoded(data.reshape(rows.shape), saturated=saturated)

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
        assert scale is None, f"{self.name} has no scale"
        return decode_narrow(data, None, out) if data.element_size() == 1 else out.copy_(data)


def _is_below_largest(codes: Tensor) -> bool:
    """Whether every 8-bit float is below the largest of its dtype; what is NaN, infinite or too large is not. Cheaper
    than to look at the weights: there are half as many bytes, and they are in the cache."""
    largest = MAX_CODES[codes.dtype]  # of the positive ones, and with the sign's bit of the negative ones
    return int(codes.view(torch.int8).amax()) < largest and int(codes.view(torch.uint8).amax()) < largest | 0x80


def _write_clamped(part: Tensor, through: torch.dtype | None, numbers: Tensor | None, target: Tensor) -> int:
    """Write a slice, clamped to the target's range, by way of `numbers` if there are; returns how many were beyond it.

    Raises `InvalidValueError` for NaN and infinity."""
    largest = torch.finfo(target.dtype).max
    saturated = 0
    if finite_peak(part.float() if part.element_size() == 1 else part) > largest:
        saturated = int((part.abs() > largest).sum())
        part = part.clamp(-largest, largest)
    target.copy_(part if numbers is None else numbers.copy_(part.to(through)))
    return saturated


MAX_CODES = {torch.float8_e4m3fn: 0x7E, torch.float8_e5m2: 0x7B}
"""The bits of the largest number, as an integer; larger integers are NaN and infinity."""

FP32 = PlainFormat("fp32", torch.float32)
FP16 = PlainFormat("fp16", torch.float16)
BF16 = PlainFormat("bf16", torch.bfloat16)
FP8_E4M3FN = PlainFormat("fp8_e4m3fn", torch.float8_e4m3fn, through=torch.float16)
FP8_E5M2 = PlainFormat("fp8_e5m2", torch.float8_e5m2, through=torch.float16)
