"""Exact and quick ways from 8-bit floats to wider ones.

PyTorch's own cast from e4m3 runs one number at a time on the processor. An 8-bit float is a wider float with fewer
exponent and mantissa bits, so the bits only have to be moved: widen with the sign, shift exponent and mantissa into
place, clear what the sign left in between, and multiply by the power of two between the two exponent biases. That
multiplication also turns the format's subnormal numbers into normal ones; without it, or with an integer addition
in its place, zero and subnormals come out wrong. Exact for every finite code (and for all of e5m2 into fp16).

The work is done in slices that stay in a core's cache, in place in the result: nothing else is allocated.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SLICE_ELEMENTS = 1 << 17  # 256 kB of 16-bit or 512 kB of 32-bit results: the second-level cache of one core
LARGEST_FOLDED_SCALE = 64.0  # above, scale x bias could leave the exponent range of float32


@dataclass(frozen=True)
class BitMove:
    """Where the bits of a narrow float go in a wide one: shift to the left, bits to keep, factor of the biases."""

    shift: int
    keep: int
    factor: float


MOVES: dict[tuple[torch.dtype, torch.dtype], BitMove] = {
    (torch.float8_e4m3fn, torch.bfloat16): BitMove(4, 0x87F0 - 0x10000, 2.0**120),
    (torch.float8_e4m3fn, torch.float16): BitMove(7, 0xBF80 - 0x10000, 2.0**8),
    (torch.float8_e4m3fn, torch.float32): BitMove(20, 0x87F00000 - (1 << 32), 2.0**120),
    (torch.float8_e5m2, torch.bfloat16): BitMove(5, 0x8FE0 - 0x10000, 2.0**112),
    (torch.float8_e5m2, torch.float16): BitMove(8, -1, 1.0),
    (torch.float8_e5m2, torch.float32): BitMove(21, 0x8FE00000 - (1 << 32), 2.0**112),
}
INTEGERS = {2: torch.int16, 4: torch.int32}


def decode_float8(data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
    """Write the numbers of `data` (e4m3fn or e5m2, any device), times `scale`, into `out`; returns `out`.

    `scale` broadcasts against `data` and is float32. `out` is contiguous and of data's shape. Each product is rounded
    once, to out's dtype, where the scale has no more significant bits than that dtype.
    """
    move = MOVES.get((data.dtype, out.dtype))
    if move is None or data.device.type != "cpu" or not data.is_contiguous() or torch.compiler.is_compiling():
        return _plain(data, scale, out)
    if data.numel() == 0:
        return out
    rows = data.shape[0] if data.ndim else 1
    step = max(1, SLICE_ELEMENTS // max(1, data.numel() // max(1, rows)))
    narrow = data.view(torch.int8).reshape(rows, -1)
    wide = out.view(rows, -1)
    factor: Tensor | float = move.factor
    late_scale: Tensor | None = None
    if scale is not None:
        flat = scale.reshape(-1, 1).float()
        if scale.numel() and float(flat.amax()) <= LARGEST_FOLDED_SCALE:
            factor = flat * move.factor
        else:
            late_scale = flat
    for begin in range(0, rows, step):
        part = wide[begin : begin + step]
        bits = part.view(INTEGERS[out.element_size()])
        bits.copy_(narrow[begin : begin + step])
        bits.bitwise_left_shift_(move.shift)
        if move.keep != -1:
            bits.bitwise_and_(move.keep)
        part.mul_(_slice(factor, begin, step))
        if late_scale is not None:
            part.mul_(_slice(late_scale, begin, step))
    return out


def _slice(factor: Tensor | float, begin: int, step: int) -> Tensor | float:
    if isinstance(factor, float) or factor.shape[0] == 1:
        return factor
    return factor[begin : begin + step]


def _plain(data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
    """PyTorch's own cast: quick on graphics cards, and fused with its neighbours by the compiler."""
    if scale is None:
        return out.copy_(data)
    return torch.mul(data.to(out.dtype), scale, out=out)
