"""Formats without a scale: each number is rounded to the nearest of the format.

`fp8_e4m3fn` is the reference UI's fp8 mode (its pull request 14031): weights go through fp16, then to the nearest
e4m3 number. Beyond +-448 ours takes the largest number, where a bare cast gives NaN.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from modules.memory.formats.decoding import decode_narrow
from modules.memory.formats.format import FORMATS, Encoded, finite_peak

SLICE_ELEMENTS = 1 << 20  # fewer, larger steps: on a busy processor each costs its threads a meeting


@dataclass(frozen=True)
class PlainFormat:
    """Numbers of `dtype` as they are. `through`: rounded to this dtype first, as others do."""

    name: str
    dtype: torch.dtype
    through: torch.dtype | None = None
    scaled: bool = False

    def encode(self, weight: Tensor) -> Encoded:
        if weight.dtype == self.dtype:
            return Encoded(weight)
        peak = finite_peak(weight.float() if weight.element_size() == 1 else weight)
        largest = torch.finfo(self.dtype).max
        saturated = 0
        if peak > largest:
            saturated = int((weight.abs() > largest).sum())
            weight = weight.clamp(-largest, largest)
        if self.through is None:
            return Encoded(weight.to(self.dtype), saturated=saturated)
        return Encoded(self._narrowed(weight), saturated=saturated)

    def _narrowed(self, weight: Tensor) -> Tensor:
        """In slices by way of float32: on the processor PyTorch casts that to 8 bits nine times as fast as float16."""
        data = torch.empty_like(weight, dtype=self.dtype)
        if not weight.ndim:
            return data.copy_(weight.to(self.through).float())
        step = max(1, SLICE_ELEMENTS * weight.shape[0] // max(1, weight.numel()))
        for begin in range(0, weight.shape[0], step):
            part = weight[begin : begin + step]
            data[begin : begin + step] = part.to(self.through).float()
        return data

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
