"""Exact and quick ways from 8-bit numbers to wider ones.

PyTorch's own cast from 8-bit floats runs one number at a time on the CPU. Here the bits are moved: widen to 16
bits with the sign, shift exponent and mantissa to where float16 has them, clear what the sign left in between. That is
the number divided by the power of two between the two exponent biases, and exact, subnormal numbers included. From
float16 every CPU widens to float32 at full speed, where one multiplication puts the power of two, and the row's
scale with it, back. (Moving the bits to float32 or bfloat16 at once would start that multiplication from numbers that
are subnormal there, for every weight below 0.016: half of a usual layer, and many times slower. An integer addition of
the biases instead of the multiplication is wrong for zero and subnormal numbers.)

The work is done in slices that stay in the caches of the cores that share it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from modules.memory.kernels.decoding import DECODING

SLICE_ELEMENTS = 1 << 17  # for each thread: with 1 + 2 + 4 bytes an element a core's second-level cache of 1 MB


@dataclass(frozen=True)
class BitMove:
    """Where the bits of a narrow float go in a float16: the shift, as a factor; the bits to keep (None: all); the
    factor that makes up for the difference of the exponents' biases (None: there is none).

    Tensors, because a number is made into a tensor at each use, which takes as long as half a slice."""

    shift: Tensor
    keep: Tensor | None
    factor: Tensor | None


MOVES: dict[torch.dtype, BitMove] = {
    torch.float8_e4m3fn: BitMove(
        torch.tensor(1 << 7, dtype=torch.int16),
        torch.tensor(0xBF80 - 0x10000, dtype=torch.int16),
        torch.tensor(2.0**8, dtype=torch.float32),
    ),
    torch.float8_e5m2: BitMove(torch.tensor(1 << 8, dtype=torch.int16), None, None),
}


def is_dense(data: Tensor) -> bool:
    """Say whether a weight's elements lie in one piece, row by row: contiguous, or channels-last."""
    return data.is_contiguous() or (data.ndim == 4 and data.is_contiguous(memory_format=torch.channels_last))


def decode_narrow(data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
    """Write the numbers of `data` (e4m3fn, e5m2 or int8, any device), times `scale`, into `out`; returns `out`.

    `scale` broadcasts against `data` and is float32. `out` is contiguous and of data's shape. Each product is rounded
    once, to out's dtype, where the scale has no more significant bits than that dtype. Numbers are finite: the codes
    for NaN and infinity are never stored.
    """
    if data.device.type != "cpu" or torch.compiler.is_compiling() or not data.is_contiguous():
        return _plain(data, scale, out)
    if data.numel() == 0:
        return out
    move = MOVES.get(data.dtype)
    by_rows = scale is not None and scale.numel() > 1
    rows = data.shape[0] if by_rows else data.numel()  # without scales slices need not follow the rows
    factor = None if move is None else move.factor
    if scale is not None:
        scales = scale.float().reshape((rows, 1) if by_rows else ())
        factor = scales if factor is None else scales * factor
    _decode_rows(data.reshape(rows, -1), move, factor, out.view(rows, -1))
    return out


def _decode_rows(narrow: Tensor, move: BitMove | None, factor: Tensor | None, wide: Tensor) -> None:
    """Decode `narrow` [rows, n] into `wide`, slice by slice; `factor` is one number or [rows, 1]."""
    rows, length = narrow.shape
    step = min(rows, max(1, SLICE_ELEMENTS * torch.get_num_threads() // length))
    bits = torch.empty(step if move else 0, length, dtype=torch.int16)
    single = torch.empty(0 if wide.dtype == torch.float32 else step, length)
    for begin in range(0, rows, step):
        source, part = narrow[begin : begin + step], wide[begin : begin + step]
        numbers = part if part.dtype == torch.float32 else single[: len(part)]
        numbers.copy_(source if move is None else _moved(source, bits[: len(part)], move))
        if factor is not None:
            numbers.mul_(factor if factor.ndim == 0 else factor[begin : begin + step])
        if numbers is not part:
            part.copy_(numbers)


def _moved(source: Tensor, bits: Tensor, move: BitMove) -> Tensor:
    """The numbers as float16, divided by the move's factor; they lie in `bits` (int16)."""
    bits.copy_(source.view(torch.int8)).mul_(move.shift)
    if move.keep is not None:
        bits.bitwise_and_(move.keep)
    return bits.view(torch.float16)


def _plain(data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
    """Decode by a kernel for this GPU, or by PyTorch's own cast, which the compiler fuses with its neighbours."""
    if data.device.type == "cuda" and not torch.compiler.is_compiling():
        kernel, rows = DECODING.on(data.device), None if scale is None or scale.numel() == 1 else scale.view(-1)
        if kernel is not None and (scale is None) == (rows is None) and kernel.decode(data, rows, out):
            return out
    if data.dtype == torch.int8 and scale is not None and not torch.compiler.is_compiling():
        return torch.mul(data, scale, out=out)  # in float32, and in one pass; of 8-bit floats there is no such product
    out.copy_(data)  # exact: the product below is the one rounding
    return out if scale is None else out.mul_(scale)
