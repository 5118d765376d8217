"""Exact and quick ways from 8-bit floats to wider ones.

PyTorch's own cast from 8-bit floats runs one number at a time on the processor. Two ways are quicker, both exact:

- To float16 the bits are moved: widen with the sign, shift exponent and mantissa into place, clear what the sign left
  in between, and multiply by the power of two between the two exponent biases. (An integer addition of the biases in
  place of the multiplication is wrong for zero and subnormal numbers.)
- To bfloat16 and float32 the same multiplication would start from numbers that are subnormal there, for every weight
  below the format's smallest normal number (0.016 for e4m3: half of a usual layer), and processors are 4 times slower
  on those. So two codes at a time are looked up in a table of all 65,536 pairs, which fits into a core's cache.

The work is done in slices that stay in the cache, in place in the result.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

SLICE_ELEMENTS = 1 << 17  # 256 kB of 16-bit or 512 kB of 32-bit results: the second-level cache of one core
PAIRS = 1 << 16


@dataclass(frozen=True)
class BitMove:
    """Where the bits of a narrow float go in a wide one: shift to the left, bits to keep, factor of the biases."""

    shift: int
    keep: int
    factor: float


MOVES: dict[tuple[torch.dtype, torch.dtype], BitMove] = {
    (torch.float8_e4m3fn, torch.float16): BitMove(7, 0xBF80 - 0x10000, 2.0**8),
    (torch.float8_e5m2, torch.float16): BitMove(8, -1, 1.0),
}
TABLES = {
    (narrow, wide) for narrow in (torch.float8_e4m3fn, torch.float8_e5m2) for wide in (torch.bfloat16, torch.float32)
}
PAIR_DTYPES = {2: torch.int32, 4: torch.int64}  # of two wide numbers, by the bytes of one


def decode_float8(data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
    """Write the numbers of `data` (e4m3fn or e5m2, any device), times `scale`, into `out`; returns `out`.

    `scale` broadcasts against `data` and is float32. `out` is contiguous and of data's shape. Each product is rounded
    once, to out's dtype, where the scale has no more significant bits than that dtype.
    """
    if data.device.type != "cpu" or torch.compiler.is_compiling() or not data.is_contiguous():
        return _plain(data, scale, out)
    if data.numel() == 0:
        return out
    kind = (data.dtype, out.dtype)
    rows = data.shape[0] if data.ndim else 1
    narrow, wide = data.reshape(rows, -1), out.view(rows, -1)
    step = max(2, SLICE_ELEMENTS // narrow.shape[1] // 2 * 2)  # even, so that slices start at whole pairs
    flat_scale = None if scale is None else scale.reshape(-1, 1).float()
    for begin in range(0, rows, step):
        part, source = wide[begin : begin + step], narrow[begin : begin + step]
        if kind in TABLES and _is_paired(source) and _is_paired(part):
            _look_up(source.reshape(-1), part.view(-1))
        elif kind in MOVES:
            _move(source, part, MOVES[kind])
        else:
            part.copy_(source)
        if flat_scale is not None:
            part.mul_(flat_scale if flat_scale.shape[0] == 1 else flat_scale[begin : begin + step])
    return out


def _is_paired(tensor: Tensor) -> bool:
    """Whether it starts at an even element, so that two elements can be seen as one wider number."""
    return tensor.storage_offset() % 2 == 0


def _look_up(source: Tensor, target: Tensor) -> None:
    pairs = source.numel() // 2
    if pairs:
        numbers = source[: 2 * pairs].view(torch.uint16).to(torch.int32)
        wide = target[: 2 * pairs].view(PAIR_DTYPES[target.element_size()])
        torch.index_select(_pair_table(source.dtype, target.dtype), 0, numbers, out=wide)
    if 2 * pairs < source.numel():
        target[-1:] = source[-1:]


@cache
def _pair_table(narrow: torch.dtype, wide: torch.dtype) -> Tensor:
    """For every pair of codes both numbers, as one integer of twice the width [65536]."""
    numbers = torch.arange(256, dtype=torch.uint8).view(narrow).to(wide)
    codes = torch.arange(PAIRS)
    both = torch.stack([numbers[codes & 255], numbers[codes >> 8]], dim=1)  # little-endian: the first code is low
    return both.view(PAIR_DTYPES[numbers.element_size()]).reshape(-1)


def _move(source: Tensor, target: Tensor, move: BitMove) -> None:
    bits = target.view(torch.int16)
    bits.copy_(source.view(torch.int8))
    bits.bitwise_left_shift_(move.shift)
    if move.keep != -1:
        bits.bitwise_and_(move.keep)
    if move.factor != 1.0:
        target.mul_(move.factor)


def _plain(data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
    """PyTorch's own cast: quick on graphics cards, and fused with its neighbours by the compiler."""
    if scale is None:
        return out.copy_(data)
    return torch.mul(data.to(out.dtype), scale, out=out)
