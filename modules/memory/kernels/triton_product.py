"""Kernels in Triton for products in 8 bits on a GPU: rounding the rows of an input in one pass, and an int8 product of
matrices whose sums are scaled before they leave the kernel.

`torch._int_mm` writes int32 sums, which are read, scaled and written again: at the sizes of a transformer that takes as
long as the product. Rounding is, bit for bit, what `modules.memory.int8_matmul` computes with PyTorch's operations.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_COLUMNS = 1 << 16
"""Of a row that is rounded: a program holds it in registers."""
ROUNDING = 12582912.0
"""1.5 * 2**23: added to a float32 number of a magnitude below 2**22 and taken off again, it rounds half to even."""


@triton.jit
def _round_row(
    rows, data, factors, stride, columns, smallest,
    LARGEST: tl.constexpr, IS_INT: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < columns
    x = tl.load(rows + row * stride + place, mask=inside, other=0.0).to(tl.float32)
    peak = tl.maximum(tl.max(tl.abs(x), 0), smallest)
    if IS_INT:
        steps = x * (tl.div_rn(1.0, peak) * LARGEST)
        codes = ((steps + 12582912.0) - 12582912.0).to(tl.int8)  # ROUNDING
        factor = peak * (1.0 / LARGEST)
    else:
        factor = peak * (1.0 / LARGEST)
        codes = tl.div_rn(x, factor).to(data.dtype.element_ty)
    tl.store(data + row * columns + place, codes, mask=inside)
    tl.store(factors + row, factor)


def round_rows(rows: Tensor, data: Tensor, factors: Tensor, largest: float, smallest: float) -> None:
    """Round `rows` [M, K] (float, contiguous along K) to `data` [M, K] (int8 or e4m3, contiguous) so that the largest
    magnitude of each, at least `smallest`, becomes `largest`; `factors` [M, 1] multiply the codes back."""
    columns = rows.shape[1]
    block = triton.next_power_of_2(columns)
    _round_row[(len(rows),)](
        rows, data, factors, rows.stride(0), columns, smallest, largest, data.dtype == torch.int8, block,
        num_warps=max(1, min(16, block // 512)), enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _int8_product(
    left, weight, factors, scale, bias, out, M, N, stride,
    K: tl.constexpr, HAS_FACTORS: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
) -> None:  # fmt: skip
    """One tile [BLOCK_M, BLOCK_N] of `left` [M, K] times the transpose of `weight` [N, K]. Tiles go in groups of rows,
    whose factors stay in the cache."""
    program = tl.program_id(0)
    high, wide = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    in_group = GROUP * wide
    first = (program // in_group) * GROUP
    size = tl.minimum(high - first, GROUP)
    top = (first + (program % in_group) % size) * BLOCK_M
    side = ((program % in_group) // size) * BLOCK_N
    lines, columns, deep = top + tl.arange(0, BLOCK_M), side + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    left_at = left + (lines % M)[:, None].to(tl.int64) * K + deep[None, :]
    right_at = weight + (columns % N)[None, :].to(tl.int64) * K + deep[:, None]
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(left_at, mask=deep[None, :] < K - k * BLOCK_K, other=0)
        b = tl.load(right_at, mask=deep[:, None] < K - k * BLOCK_K, other=0)
        sums = tl.dot(a, b, sums, out_dtype=tl.int32)
        left_at += BLOCK_K
        right_at += BLOCK_K
    made = sums.to(tl.float32)
    if HAS_FACTORS:
        made = made * tl.load(factors + lines, mask=lines < M, other=0.0)[:, None]
    made = made * tl.load(scale + columns, mask=columns < N, other=0.0)[None, :]
    if HAS_BIAS:
        made = made + tl.load(bias + columns, mask=columns < N, other=0.0)[None, :]
    inside = (lines < M)[:, None] & (columns < N)[None, :]
    at = out + lines[:, None].to(tl.int64) * stride + columns[None, :]
    tl.store(at, made.to(out.dtype.element_ty), mask=inside)


def int8_product(
    left: Tensor,
    weight: Tensor,
    factors: Tensor | None,
    scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    tiles: tuple[int, int, int, int, int],
) -> None:
    """Write int8 `left` [M, K] times the transpose of int8 `weight` [N, K] (both contiguous), its rows times `factors`
    [M, 1] and its columns times `scale` [N], plus `bias` [N] (all float32), into `out` [M, N], contiguous along N.
    `tiles`: rows, columns and depth of a tile, warps, and loads that are under way."""
    (m, k), n = left.shape, len(weight)
    high, wide, deep, warps, stages = tiles
    grid = (triton.cdiv(m, high) * triton.cdiv(n, wide),)
    _int8_product[grid](
        left, weight, out if factors is None else factors, scale, out if bias is None else bias, out, m, n,
        out.stride(0), k, factors is not None, bias is not None, high, wide, deep, 8,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
