"""Formats with one scale per row, so that every row uses the whole range of its 8 bits.

A row is what makes one output of a layer. Its largest magnitude is put on the format's largest number; neither tiny
nor huge rows lose anything to the format's range. Scales have 8 significant bits (they are rounded up to a bfloat16
number), so that number x scale is rounded only once whatever dtype it is decoded to.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from modules.memory.formats.decoding import decode_narrow
from modules.memory.formats.format import (
    Encoded,
    Rows,
    WeightRows,
    by_row,
    checked_slices,
    empty_rows,
    finite_peak,
    row_peaks,
    slices,
    wide_slice,
)
from modules.memory.kernels.row_support import row_encoder


@dataclass(frozen=True)
class RowFormat:
    """`largest`: the number that a row's largest magnitude becomes."""

    name: str
    dtype: torch.dtype
    largest: float
    scaled: bool = True

    def encode(self, weight: Tensor) -> Encoded:
        return self.encode_rows(WeightRows(weight))

    def encode_rows(self, rows: Rows) -> Encoded:
        """See `StorageFormat`; nothing as large as the weight is ever in float32."""
        data, scale = empty_rows(rows, self.dtype)
        compiled = row_encoder(rows.device, rows.dtype, self.dtype, data.numel())
        if compiled is not None:
            for where, part in slices(rows):
                if not compiled(part, data[where], scale[where]):
                    finite_peak(row_peaks(part))
            return Encoded(data.reshape(rows.shape), scale)
        wide = wide_slice(rows)
        for where, part, peaks in checked_slices(rows):
            scale[where] = part_scale = self.scale_of(peaks)
            # Nothing comes to lie beyond the largest number by more than a rounding: the scale was rounded up.
            numbers = wide[: len(part)].copy_(part).div_(part_scale[:, None])
            data[where] = numbers if self.dtype.is_floating_point else numbers.round_()
        return Encoded(data.reshape(rows.shape), scale)

    def scale_of(self, peaks: Tensor) -> Tensor:
        """The scales of rows with these largest magnitudes."""
        return _rounded_up(peaks / self.largest)

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
        assert scale is not None, f"{self.name} needs its scale"
        # A convolution's weight may be channels last, see `int8_matmul`: to copy its bytes is cheaper than a slow cast.
        ordered = data.contiguous() if data.device.type == "cpu" else data
        return decode_narrow(ordered, by_row(scale, data.ndim), out)


def _rounded_up(scale: Tensor) -> Tensor:
    """Positive float32 numbers to the next bfloat16 number, kept as float32; rows of zeros get 1."""
    bits = scale.contiguous().view(torch.int32)
    rounded = ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32)
    return torch.where(scale > 0, rounded.clamp(min=2.0**-126), torch.ones_like(scale))


INT8_ROW = RowFormat("int8_row", torch.int8, largest=127.0)
E4M3_ROW = RowFormat("fp8_e4m3fn_row", torch.float8_e4m3fn, largest=448.0)
E5M2_ROW = RowFormat("fp8_e5m2_row", torch.float8_e5m2, largest=57344.0)
"""What files of others hold. In no catalog: where one may choose, e4m3fn with a scale is twice as exact."""
