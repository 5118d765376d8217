"""Formats with one scale a row, so that every row uses the whole range of its 8 bits.

A row is what makes one output of a layer. Its largest magnitude is put on the format's largest number; neither tiny
nor huge rows lose anything to the format's range. Scales have 8 significant bits (they are rounded up to a bfloat16
number), so that number x scale is rounded only once whatever dtype it is decoded to.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from modules.memory.formats.decoding import decode_narrow
from modules.memory.formats.format import FORMATS, Encoded, by_row, finite_peak

SLICE_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class RowFormat:
    """`largest`: the number that a row's largest magnitude becomes."""

    name: str
    dtype: torch.dtype
    largest: float
    scaled: bool = True

    def encode(self, weight: Tensor) -> Encoded:
        """See `StorageFormat`; goes through slices of rows, so that nothing as large as the weight is in float32."""
        rows = weight.reshape(weight.shape[0] if weight.ndim else 1, -1)
        data = torch.empty(rows.shape, dtype=self.dtype, device=weight.device)
        scale = torch.ones(rows.shape[0], dtype=torch.float32, device=weight.device)
        step = max(1, SLICE_ELEMENTS // max(1, rows.shape[1]))
        for begin in range(0, rows.shape[0] if rows.numel() else 0, step):
            part = rows[begin : begin + step].float()
            peaks = part.abs().amax(dim=1)
            finite_peak(peaks)
            part_scale = _rounded_up(peaks / self.largest)
            scale[begin : begin + step] = part_scale
            # Nothing comes to lie beyond the largest number by more than a rounding: the scale was rounded up.
            numbers = part / part_scale[:, None] if weight.dtype == part.dtype else part.div_(part_scale[:, None])
            data[begin : begin + step] = numbers if self.dtype.is_floating_point else numbers.round_()
        return Encoded(data.reshape(weight.shape), scale)

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
        assert scale is not None, f"{self.name} needs its scale"
        return decode_narrow(data, by_row(scale, data.ndim), out)


def _rounded_up(scale: Tensor) -> Tensor:
    """Positive float32 numbers to the next bfloat16 number, kept as float32; rows of zeros get 1."""
    bits = scale.contiguous().view(torch.int32)
    rounded = ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32)
    return torch.where(scale > 0, rounded.clamp(min=2.0**-126), torch.ones_like(scale))


for _format in (
    RowFormat("fp8_e4m3fn_row", torch.float8_e4m3fn, largest=448.0),
    RowFormat("int8_row", torch.int8, largest=127.0),
):
    FORMATS.add(_format.name, _format)

E5M2_ROW = RowFormat("fp8_e5m2_row", torch.float8_e5m2, largest=57344.0)
"""What files of others hold. Not registered: where one may choose, e4m3fn with a scale is twice as exact."""
