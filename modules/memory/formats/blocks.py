"""Formats that pack a row of a weight into blocks of bytes: a few scales and the weights in fewer than 8 bits each.

What is kept is uint8 [rows, bytes of a row], so the weight's shape is not that of its data. `BlockFormat.of` gives the
format as it stands for one weight, which knows the shape; that is what a stored layer holds. Blocks lie along the row,
which is all of a weight but its first dimension, flattened; rows of another length than whole blocks cannot be stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from modules.errors import InvalidValueError
from modules.memory.formats.format import (
    Encoded,
    Rows,
    StorageFormat,
    WeightRows,
    checked_slices,
    row_count,
    row_width,
)

DECODED_AT_ONCE = 1 << 18
"""Elements: on the CPU what is on the way stays in the caches."""
DECODED_AT_ONCE_ON_GPU = 1 << 23
"""There each step costs a launch, and what is on the way some bytes per element."""
UNPACKING_BYTES = 8
"""About so many: 4 to 13 by format."""
PACKED_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class BlockFormat:
    """`unpack` makes float32 [n, block] of uint8 [n, block_bytes], `pack` the reverse; None: others write such weights
    and we only read them. `shape`: of the one weight that this stands for."""

    name: str
    block: int
    block_bytes: int
    unpack: Callable[[Tensor], Tensor] = field(compare=False, repr=False)
    pack: Callable[[Tensor], Tensor] | None = field(default=None, compare=False, repr=False)
    shape: torch.Size | None = None
    dtype: torch.dtype = torch.uint8
    scaled: bool = True

    @property
    def bits_per_weight(self) -> float:
        """Bits per weight, scales included."""
        return 8 * self.block_bytes / self.block

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a weight of this shape has rows of whole blocks."""
        return len(shape) >= 2 and row_width(shape) > 0 and row_width(shape) % self.block == 0

    def of(self, shape: tuple[int, ...]) -> BlockFormat:
        """The format of a weight of this shape."""
        return replace(self, shape=torch.Size(shape))

    def row_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of one row of a weight of this shape."""
        return row_width(shape) // self.block * self.block_bytes

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises `InvalidValueError` for a weight whose rows are not whole blocks."""
        if not self.takes(shape):
            raise InvalidValueError(
                f"a weight of shape {list(shape)} has no rows of whole blocks of {self.block}, as {self.name} needs."
            )

    def encode(self, weight: Tensor) -> Encoded:
        """See `StorageFormat`. Raises `InvalidValueError` too for a format that is only read, and for rows that are
        not whole blocks."""
        return self.encode_rows(WeightRows(weight))

    def encode_rows(self, rows: Rows) -> Encoded:
        """See `StorageFormat`."""
        if self.pack is None:
            raise InvalidValueError(
                f"weights can be read in {self.name} and not be written. Choose another format, or LoRA mode exact."
            )
        self.check(rows.shape)
        count, row_bytes = row_count(rows.shape), self.row_bytes(rows.shape)
        data = torch.empty((count, row_bytes), dtype=torch.uint8, device=rows.device)
        for where, part, _ in checked_slices(rows):
            blocks, packed = part.reshape(-1, self.block), data[where].view(-1, self.block_bytes)
            step = max(1, PACKED_AT_ONCE // self.block) if part.device.type == "cpu" else len(blocks)
            for begin in range(0, len(blocks), step):
                packed[begin : begin + step] = self.pack(blocks[begin : begin + step].float())
        return Encoded(data)

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
        """See `StorageFormat`; `out` has the weight's shape, `data` the same rows."""
        assert scale is None, f"{self.name} holds its scales in its blocks"
        blocks, wide = data.reshape(-1, self.block_bytes), out.view(-1, self.block)
        step = decoded_at_once(data.device) // self.block
        for begin in range(0, len(blocks), step):
            wide[begin : begin + step] = self.unpack(blocks[begin : begin + step])
        return out


def decoded_at_once(device: torch.device) -> int:
    """Elements of a weight that are decoded in one step: what is on the way takes memory."""
    return DECODED_AT_ONCE if device.type == "cpu" else DECODED_AT_ONCE_ON_GPU


def weight_shape(storage: StorageFormat | None, data: Tensor) -> torch.Size:
    """The shape of the weight that is kept as `data`."""
    if isinstance(storage, BlockFormat) and storage.shape is not None and data.dtype == storage.dtype:
        return torch.Size((data.shape[0], *storage.shape[1:]))
    return data.shape


def for_weight(storage: StorageFormat, shape: tuple[int, ...]) -> StorageFormat | None:
    """The format as it stands for a weight of this shape; None: it cannot hold it."""
    if not isinstance(storage, BlockFormat):
        return storage
    return storage.of(shape) if storage.takes(shape) else None


def is_packed(storage: StorageFormat | None) -> bool:
    """Whether the data of such weights has another shape than they."""
    return isinstance(storage, BlockFormat)


def kept_bytes(storage: StorageFormat, shape: tuple[int, ...]) -> int:
    """Bytes of a weight of this shape with its scales."""
    if isinstance(storage, BlockFormat):
        return row_count(shape) * storage.row_bytes(shape)
    scales = 4 * row_count(shape) if storage.scaled and len(shape) > 1 else 0
    return torch.Size(shape).numel() * storage.dtype.itemsize + scales
