"""8-bit floats on devices that have no such dtype (Apple's GPUs, old builds for AMD's): their codes, as uint8.

Each code is looked up in a table of all 256 numbers in the dtype that is asked for, which holds every one of them
exactly. So a weight has the same bytes as elsewhere, under the same name, and decodes to equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from modules.memory.formats.blocks import decoded_at_once
from modules.memory.formats.format import Encoded, Rows, StorageFormat, WeightRows, by_row
from modules.memory.formats.plain import MAX_CODES, PlainFormat
from modules.memory.formats.rowwise import RowFormat


@dataclass(frozen=True)
class CodesFormat:
    """`floats`: the format whose codes are kept; `name` and `scaled` are its."""

    floats: PlainFormat | RowFormat
    name: str
    scaled: bool
    dtype: torch.dtype = torch.uint8

    def encode(self, weight: Tensor) -> Encoded:
        """See `StorageFormat`."""
        return self.encode_rows(WeightRows(weight))

    def encode_rows(self, rows: Rows) -> Encoded:
        """See `StorageFormat`. The CPU encodes, slice by slice, whatever the device of the weight."""
        return self.codes_of(self.floats.encode_rows(_RowsOnCpu(rows)), rows.device)

    def codes_of(self, encoded: Encoded, device: torch.device) -> Encoded:
        """Turn what `floats` has encoded into codes on `device`."""
        scale = None if encoded.scale is None else encoded.scale.to(device)
        return replace(encoded, data=encoded.data.view(torch.uint8).to(device), scale=scale)

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
        """See `StorageFormat`."""
        if data.device.type == "cpu":
            return self.floats.decode(data.view(self.floats.dtype), scale, out)
        return look_up(data, numbers_of(self.floats.dtype, out.dtype, data.device), scale, out)


class _RowsOnCpu:
    """`Rows` whose slices come to the CPU one by one."""

    def __init__(self, rows: Rows) -> None:
        self.shape, self.dtype, self.device = rows.shape, rows.dtype, torch.device("cpu")
        self._rows = rows

    def read(self, begin: int, end: int) -> Tensor:
        return self._rows.read(begin, end).to(self.device)


def as_codes(storage: StorageFormat | None) -> StorageFormat | None:
    """Return the format in which a device without 8-bit floats keeps a weight of this one: itself, but for those."""
    if isinstance(storage, PlainFormat | RowFormat) and storage.dtype in MAX_CODES:
        return CodesFormat(storage, storage.name, storage.scaled)
    return storage


def look_up(codes: Tensor, numbers: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
    """Write the number of each code of a weight, times `scale` (by row), into `out`; returns `out`."""
    flat, wide, step = codes.reshape(-1), out.view(-1), decoded_at_once(codes.device)
    for begin in range(0, len(flat), step):
        wide[begin : begin + step] = numbers.index_select(0, flat[begin : begin + step].int())
    return out if scale is None else out.mul_(by_row(scale, out.ndim))


@cache
def numbers_of(stored: torch.dtype, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers of all codes, in their order [256]."""
    with torch.inference_mode(False):
        return torch.arange(256, dtype=torch.uint8).view(stored).to(dtype).to(device)
