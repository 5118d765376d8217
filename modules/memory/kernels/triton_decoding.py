"""Kernels in Triton that decode 8-bit weights on a GPU: the weights of a block in one launch, or a single weight.

A table in the GPU's memory names each weight; a second one divides the weights into tiles. A tile is read 16 bytes at a
time, widened by moving bits (as `modules.memory.formats.decoding` does on CPUs), multiplied by the scales of its rows,
and written in 16 bits, all in one pass. Each element is what `decode_narrow` gives, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048
WARPS = 4
VECTOR = 16  # codes that a thread reads at a time, and bytes that they are aligned to
MAX_COLUMNS = 1 << 20
"""Of one row: up to here the number of a row is found by a product in float32."""
CODES = {torch.float8_e4m3fn: 0, torch.float8_e5m2: 1, torch.int8: 2}


@triton.jit
def _widened(codes, CODE: tl.constexpr):
    """Return int8 codes as float32 numbers."""
    if CODE == 0:  # e4m3: sign, 4 bits of exponent and 3 of mantissa, moved to where float16 has them
        bits = (codes.to(tl.int16) << 7) & -16512
        wide = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    elif CODE == 1:
        wide = (codes.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        wide = codes.to(tl.float32)
    return wide


@triton.jit
def _decode_tile(
    source, target, scale, start, count, columns, CODE: tl.constexpr, SCALED: tl.constexpr, TILE: tl.constexpr
):
    """Write the elements `start` to `start + TILE` of a weight of `count` elements in rows of `columns`."""
    first = start // columns
    begin = start - first * columns
    inverse = 1.0 / columns.to(tl.float32)
    if (start + TILE <= count) & (columns % 16 == 0):  # whole vectors, each of one row
        vector = tl.arange(0, TILE // 16)
        place = start + vector[:, None] * 16 + tl.arange(0, 16)[None, :]
        numbers = _widened(tl.load(source + place), CODE)
        if SCALED:
            line = (((begin + vector * 16).to(tl.float32) + 0.5) * inverse).to(tl.int32)
            numbers = numbers * tl.load(scale + first + line)[:, None]
        tl.store(target + place, numbers.to(target.dtype.element_ty))
    else:
        local = tl.arange(0, TILE)
        inside = start + local < count
        wide = _widened(tl.load(source + start + local, mask=inside, other=0), CODE)
        if SCALED:
            row = (((begin + local).to(tl.float32) + 0.5) * inverse).to(tl.int32)
            wide = wide * tl.load(scale + first + row, mask=inside, other=1.0)
        tl.store(target + start + local, wide.to(target.dtype.element_ty), mask=inside)


@triton.jit
def _decode_block(weights, tiles, memory, CODE: tl.constexpr, SCALED: tl.constexpr, TILE: tl.constexpr):
    tile = tl.program_id(0)
    weight = weights + tl.load(tiles + 2 * tile) * 5
    start = tl.multiple_of(tl.load(tiles + 2 * tile + 1), TILE)
    source = tl.multiple_of(tl.load(weight).to(tl.pointer_type(tl.int8)), 16)
    scale = tl.load(weight + 1).to(tl.pointer_type(tl.float32))
    offset = tl.multiple_of(tl.load(weight + 2), 16)
    count, columns = tl.load(weight + 3).to(tl.int32), tl.load(weight + 4).to(tl.int32)
    _decode_tile(source, memory + offset, scale, start, count, columns, CODE, SCALED, TILE)


@triton.jit(do_not_specialize=["count", "columns"])
def _decode_weight(source, target, scale, count, columns, CODE: tl.constexpr, SCALED: tl.constexpr, TILE: tl.constexpr):
    _decode_tile(source, target, scale, tl.program_id(0) * TILE, count, columns, CODE, SCALED, TILE)


def fits(data: Tensor, scale: Tensor | None) -> bool:
    """Say whether a weight whose elements lie in one piece, row by row, can be decoded by these kernels."""
    if data.dtype not in CODES or not data.ndim or data.data_ptr() % VECTOR:
        return False
    if scale is not None and (scale.dtype != torch.float32 or not scale.is_contiguous() or scale.numel() != len(data)):
        return False
    return 0 < data.numel() < 2**31 - TILE and data.numel() // len(data) <= MAX_COLUMNS


def block_decoder(sources: Sequence[tuple[Tensor, Tensor | None, int]]) -> Callable[[Tensor], None]:
    """Return what decodes the weights of a block into one piece of memory, each in the order in which its codes lie.

    A source is codes that `fits`, one scale per row or None, and the offset of its elements, a multiple of 16. All are
    of one stored dtype, all with scales or all without, and stay where they are while the result is used."""
    rows, tiles = list[tuple[int, ...]](), list[Tensor]()
    for number, (data, scale, offset) in enumerate(sources):
        count = data.numel()
        rows.append((data.data_ptr(), 0 if scale is None else scale.data_ptr(), offset, count, count // len(data)))
        starts = torch.arange(0, count, TILE, dtype=torch.int32)
        tiles.append(torch.stack((torch.full_like(starts, number), starts), 1))
    device, code, scaled = sources[0][0].device, CODES[sources[0][0].dtype], sources[0][1] is not None
    table, places = torch.tensor(rows, dtype=torch.int64).to(device), torch.cat(tiles).to(device)
    launch = _decode_block[(len(places),)]

    def decode(memory: Tensor) -> None:
        launch(table, places, memory, code, scaled, TILE, num_warps=WARPS)

    return decode


def decode_weight(data: Tensor, scale: Tensor | None, out: Tensor) -> None:
    """Decode one weight that `fits` into `out`, whose shape and strides are the same."""
    count = data.numel()
    _decode_weight[(triton.cdiv(count, TILE),)](
        data.view(torch.int8), out, out if scale is None else scale, count, count // len(data),
        CODES[data.dtype], scale is not None, TILE, num_warps=WARPS,
    )  # fmt: skip
