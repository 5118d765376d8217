"""Attention on the CPU in 8 bits, compiled by numba: scores from int8 queries and keys, weights and values in bfloat16
where the CPU multiplies those, else in float32.

After SageAttention (Zhang et al. 2024, arXiv:2410.02367): the mean of the keys is taken from each key, which adds the
same to all scores of a query and so changes no weight; queries and keys are rounded with a scale per token. The softmax
is in float32 and runs along blocks of keys (Milakov and Gimelshein 2018, arXiv:1805.02867), so scores never leave the
first cache. The 8-bit products need AVX512-VNNI, those of bfloat16 AVX512-BF16; numba's own loops would not use either,
so the three inner loops are written for LLVM here. `modules.memory.kernels.support` says whether all of this can run.

Importing this file imports numba, and compiles the kernel or reads it from the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import llvmlite.binding
import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from modules.memory.kernels.int8_product import thread_pool

ROWS = 6
"""Queries at a time in the inner loops."""
BLOCK_KEYS = 256
BLOCK_QUERIES = 48
MOST_VECTORS = 4
"""Vectors of 16 dimensions of the output that are kept in registers, for each of `ROWS` queries."""
IN_PAIRS = bool(llvmlite.binding.get_host_cpu_features().get("avx512bf16"))
"""Whether the CPU multiplies pairs of bfloat16 numbers."""
WEIGHT_BYTES = 2 if IN_PAIRS else 4
"""Bytes of a weight, and of a value that it is multiplied with."""
SUM_STEPS = BLOCK_KEYS * WEIGHT_BYTES // 4
"""Number of steps of the inner loop over a block's weights: 4 bytes in each."""
QUIETEST = np.float32(1e-12)
LEAST_QUERIES = 64
"""In one task: its keys and values are packed for as few queries at least."""
MATH = {"contract", "nnan", "ninf", "nsz", "arcp"}
"""What the compiler may do to sums and products; not reorder them, which `exp_row` relies on."""

llvmlite.binding.initialize_native_asmparser()  # for the two instructions that are named below

F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOATS, INTS = ir.VectorType(F32, 16), ir.VectorType(I32, 16)


def _at(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    """A pointer to `kind`, `offset` bytes (a number or a value) behind an address."""
    offset = ir.Constant(I64, offset) if isinstance(offset, int) else offset
    return builder.inttoptr(builder.add(address, offset), kind.as_pointer())


def _load(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    return builder.load(_at(builder, address, offset, kind), align=64 if isinstance(kind, ir.VectorType) else 4)


def _everywhere(builder: Any, number: Any, kind: Any) -> Any:
    """A vector of one number."""
    empty = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(empty, number, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(INTS, [0] * 16))


def _instruction(builder: Any, text: str, kind: Any, arguments: list[Any], where: str) -> Any:
    taken = [argument.type for argument in arguments]
    return builder.asm(ir.FunctionType(kind, taken), text, where, arguments, False)


def _dot_bytes(builder: Any, sums: Any, unsigned: Any, signed: Any) -> Any:
    """Sums [16] of int32 plus the products of four bytes each."""
    return _instruction(builder, "vpdpbusd $3, $2, $0", INTS, [sums, unsigned, signed], "=v,0,v,v")


def _dot_pairs(builder: Any, sums: Any, left: Any, right: Any) -> Any:
    """Sums [16] of float32 plus the products of two bfloat16 numbers each."""
    return _instruction(builder, "vdpbf16ps $3, $2, $0", FLOATS, [sums, left, right], "=v,0,v,v")


def _called(builder: Any, name: str, kind: Any, arguments: list[Any], *may: str) -> Any:
    """A function of LLVM; `may`: what its arithmetic may do."""
    taken = [argument.type for argument in arguments]
    found = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, taken), name)
    return builder.call(found, arguments, fastmath=may)


def _fma(builder: Any, left: Any, right: Any, added: Any) -> Any:
    return _called(builder, "llvm.fma.v16f32", FLOATS, [left, right, added])


def _add_products(builder: Any, sums: Any, left: Any, right: Any) -> Any:
    """Sums [16] of float32 plus the products of two vectors of weights and values, as they are packed."""
    return _dot_pairs(builder, sums, left, right) if IN_PAIRS else _fma(builder, left, right, sums)


@intrinsic
def _score_tile(
    typing: Any, query: Any, keys: Any, start: Any, scale: Any, bias: Any, out: Any, peaks: Any, four: Any
) -> Any:
    """Scores of `ROWS` queries [ROWS, 4 * four] (bytes, 128 added) and 64 keys, packed: (start + products) * scale +
    bias, by key, into `out` [ROWS, BLOCK_KEYS]; `peaks` [ROWS, 16] are raised to them. All are addresses."""
    signature = types.void(*[types.int64] * 8)

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        query, keys, start, scale, bias, out, peaks, four = arguments
        sums = [[cgutils.alloca_once(builder, INTS) for _ in range(4)] for _ in range(ROWS)]
        for column in range(4):
            first = _load(builder, start, 64 * column, INTS)
            for row in range(ROWS):
                builder.store(first, sums[row][column])
        row_bytes = builder.mul(four, ir.Constant(I64, 4))
        with cgutils.for_range(builder, four) as loop:
            packed = builder.add(keys, builder.mul(loop.index, ir.Constant(I64, 256)))
            columns = [_load(builder, packed, 64 * column, INTS) for column in range(4)]
            bytes_at = builder.add(query, builder.mul(loop.index, ir.Constant(I64, 4)))
            for row in range(ROWS):
                offset = builder.mul(row_bytes, ir.Constant(I64, row))
                four_bytes = _everywhere(builder, _load(builder, bytes_at, offset, I32), INTS)
                for column in range(4):
                    place = sums[row][column]
                    builder.store(_dot_bytes(builder, builder.load(place), four_bytes, columns[column]), place)
        for row in range(ROWS):
            peak = _load(builder, peaks, 64 * row, FLOATS)
            for column in range(4):
                whole = builder.sitofp(builder.load(sums[row][column]), FLOATS)
                factor, added = (_load(builder, one, 64 * column, FLOATS) for one in (scale, bias))
                score = _fma(builder, whole, factor, added)
                builder.store(score, _at(builder, out, 4 * BLOCK_KEYS * row + 64 * column, FLOATS), align=64)
                peak = builder.select(builder.fcmp_ordered(">", score, peak), score, peak)
            builder.store(peak, _at(builder, peaks, 64 * row, FLOATS), align=64)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _exp_row(typing: Any, scores: Any, out: Any, factor: Any, peak: Any) -> Any:
    """2^(scores * factor - peak) of `BLOCK_KEYS` scores, packed into `out`; returns the sum. Addresses and numbers.

    2^x by a polynomial of the fraction, and an integer addition to the exponent. Below 2^-120 it is that."""
    signature = types.float32(types.int64, types.int64, types.float32, types.float32)

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        scores, out, factor, peak = arguments

        def constant(number: float) -> Any:
            return ir.Constant(FLOATS, [number] * 16)

        factors = _everywhere(builder, factor, FLOATS)
        below = _everywhere(builder, builder.fneg(peak), FLOATS)
        sums = [cgutils.alloca_once_value(builder, constant(0.0)) for _ in range(2)]
        whole = constant(1.5 * 2**23)  # added, it leaves a number's whole part in the last bits
        with cgutils.for_range(builder, ir.Constant(I64, BLOCK_KEYS // 32)) as loop:
            made = []
            for half in range(2):
                offset = builder.add(builder.mul(loop.index, ir.Constant(I64, 128)), ir.Constant(I64, 64 * half))
                x = _fma(builder, _load(builder, scores, offset, FLOATS), factors, below)
                x = builder.select(builder.fcmp_ordered(">", x, constant(-120.0)), x, constant(-120.0))
                shifted = builder.fadd(x, whole)
                fraction = builder.fsub(x, builder.fsub(shifted, whole))
                power = constant(0.0558292)
                for coefficient in (0.2401397, 0.6931471806, 1.0):
                    power = _fma(builder, power, fraction, constant(coefficient))
                exponent = builder.shl(builder.bitcast(shifted, INTS), ir.Constant(INTS, [23] * 16))
                power = builder.bitcast(builder.add(builder.bitcast(power, INTS), exponent), FLOATS)
                builder.store(builder.fadd(builder.load(sums[half]), power), sums[half])
                made.append(power)
            if IN_PAIRS:
                made = [_instruction(builder, "vcvtne2ps2bf16 $1, $2, $0", FLOATS, made, "=v,v,v")]
            begin = builder.add(out, builder.mul(loop.index, ir.Constant(I64, 64 * len(made))))
            for place, packed in enumerate(made):
                builder.store(packed, _at(builder, begin, 64 * place, FLOATS), align=64)
        both = builder.fadd(builder.load(sums[0]), builder.load(sums[1]))
        return _called(builder, "llvm.vector.reduce.fadd.v16f32", F32, [ir.Constant(F32, -0.0), both], "reassoc")

    return signature, generate


def _sum_tile(vectors: int) -> Any:
    """The inner loop that adds weights x values for so many vectors of 16 dimensions."""

    @intrinsic
    def add(typing: Any, weights: Any, values: Any, out: Any, stride: Any) -> Any:
        """Weights [ROWS, BLOCK_KEYS] times packed values [SUM_STEPS, ...] onto `out` [ROWS, ...] float32, whose rows
        lie `stride` bytes apart like those of the values. Addresses."""
        signature = types.void(*[types.int64] * 4)

        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            weights, values, out, stride = arguments
            rows = [builder.add(out, builder.mul(stride, ir.Constant(I64, row))) for row in range(ROWS)]
            sums = [
                [
                    cgutils.alloca_once_value(builder, _load(builder, row, 64 * place, FLOATS))
                    for place in range(vectors)
                ]
                for row in rows
            ]
            with cgutils.for_range(builder, ir.Constant(I64, SUM_STEPS)) as loop:
                packed = builder.add(values, builder.mul(loop.index, stride))
                parts = [_load(builder, packed, 64 * place, FLOATS) for place in range(vectors)]
                weights_at = builder.add(weights, builder.mul(loop.index, ir.Constant(I64, 4)))
                for row in range(ROWS):
                    weight = _everywhere(builder, _load(builder, weights_at, 4 * SUM_STEPS * row, F32), FLOATS)
                    for place, part in zip(sums[row], parts, strict=True):
                        builder.store(_add_products(builder, builder.load(place), weight, part), place)
            for address, places in zip(rows, sums, strict=True):
                for number, place in enumerate(places):
                    builder.store(builder.load(place), _at(builder, address, 64 * number, FLOATS), align=64)
            return context.get_dummy_value()

        return signature, generate

    return add


_sum_1, _sum_2, _sum_3, _sum_4 = (_sum_tile(count) for count in range(1, MOST_VECTORS + 1))


@intrinsic
def _largest(typing: Any, numbers: Any) -> Any:
    """The largest of the float32 numbers [16] at an address."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        vector = _load(builder, arguments[0], 0, FLOATS)
        return _called(builder, "llvm.vector.reduce.fmax.v16f32", F32, [vector], "nnan")

    return types.float32(types.int64), generate


@intrinsic
def _bits(typing: Any, number: Any) -> Any:
    """The bits of a float32."""
    return types.uint32(types.float32), lambda context, builder, _, arguments: builder.bitcast(arguments[0], I32)


@njit(nogil=True, inline="always")
def _bf16(number):  # type: ignore[no-untyped-def]
    """The bits of the nearest bfloat16."""
    bits = _bits(np.float32(number))
    return (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)


@njit(nogil=True)
def _aligned(size_bytes):  # type: ignore[no-untyped-def]
    """Bytes that begin at a multiple of 64."""
    raw = np.empty(size_bytes + 64, np.uint8)
    begin = (-raw.ctypes.data) % 64
    return raw[begin : begin + size_bytes]


@njit(nogil=True, fastmath=MATH)
def _packed_keys(key, keys, four):  # type: ignore[no-untyped-def]
    """Keys [S,D] without their mean in int8, 64 keys x 4 dimensions together, `keys` of them (S and more); with what a
    sum of products begins at, and what it is multiplied with and added to, by key. Those beyond S weigh nothing."""
    count, width = key.shape
    mean, row = np.zeros(width, np.float32), np.zeros(4 * four, np.float32)
    for token in range(count):
        for place in range(width):
            mean[place] += key[token, place]
    for place in range(width):
        mean[place] /= np.float32(count)
    packed = _aligned(keys * 4 * four).view(np.int8)
    start = _aligned(4 * keys).view(np.int32)
    scale, bias = _aligned(4 * keys).view(np.float32), _aligned(4 * keys).view(np.float32)
    for token in range(keys):
        base = token // 64 * 256 * four + token % 64 * 4
        peak = QUIETEST
        if token < count:
            for place in range(width):
                row[place] = key[token, place] - mean[place]
                peak = max(peak, abs(row[place]))
        else:
            row[:] = np.float32(0.0)
        factor, total = np.float32(127.0) / peak, np.int32(0)
        for place in range(4 * four):
            number = np.int32(np.rint(row[place] * factor))
            total += number
            packed[base + place // 4 * 256 + place % 4] = number
        start[token] = -128 * total  # what 128, added to each byte of the queries, adds to the sum
        scale[token] = peak / np.float32(127.0) if token < count else np.float32(0.0)
        bias[token] = np.float32(0.0) if token < count else np.float32(-1e30)
    return packed, start, scale, bias


@njit(nogil=True, fastmath=MATH)
def _packed_values(value, keys, vectors):  # type: ignore[no-untyped-def]
    """Values [S,D] in lines of whole vectors: float32 [keys, 16 * vectors], or in bfloat16, two tokens of a dimension
    together: uint32 [keys / 2, 16 * vectors]."""
    count, width = value.shape
    if not IN_PAIRS:
        numbers = _aligned(keys * 64 * vectors).view(np.float32).reshape(keys, 16 * vectors)
        numbers[:] = np.float32(0.0)
        numbers[:count, :width] = value
        return numbers
    packed = _aligned(keys // 2 * 64 * vectors).view(np.uint32).reshape(keys // 2, 16 * vectors)
    packed[:] = np.uint32(0)
    for pair in range(count // 2):
        for place in range(width):
            packed[pair, place] = _bf16(value[2 * pair, place]) | (_bf16(value[2 * pair + 1, place]) << np.uint32(16))
    if count % 2:
        for place in range(width):
            packed[count // 2, place] = _bf16(value[count - 1, place])
    return packed


@njit(nogil=True)
def _add_weighted(weights, values, out, vectors):  # type: ignore[no-untyped-def]
    """`_sum_tile` for any number of vectors. Addresses."""
    stride, left = 64 * vectors, vectors
    while left > 0:
        taken = min(left, MOST_VECTORS)
        if taken == 4:
            _sum_4(weights, values, out, stride)
        elif taken == 3:
            _sum_3(weights, values, out, stride)
        elif taken == 2:
            _sum_2(weights, values, out, stride)
        else:
            _sum_1(weights, values, out, stride)
        left -= taken
        values += 64 * taken
        out += 64 * taken


@njit("void(float32[:,:],float32[:,:],float32[:,:],float32[:,:])", nogil=True, fastmath=MATH, cache=True)
def _attend_head(query, key, value, out):  # type: ignore[no-untyped-def]
    """Attention of queries [T,D] over keys and values [S,D] of one head, into `out` [T,D]."""
    count, width = query.shape
    keys = (len(key) + BLOCK_KEYS - 1) // BLOCK_KEYS * BLOCK_KEYS
    four, vectors = (width + 3) // 4, (width + 15) // 16
    bytes_row, wide = 4 * four, 16 * vectors
    packed, start, scale, bias = _packed_keys(key, keys, four)
    values = _packed_values(value, keys, vectors)
    rounded = _aligned(BLOCK_QUERIES * bytes_row)
    sums = _aligned(4 * BLOCK_QUERIES * wide).view(np.float32)
    scores, weights = _aligned(4 * ROWS * BLOCK_KEYS).view(np.float32), _aligned(WEIGHT_BYTES * ROWS * BLOCK_KEYS)
    peaks = _aligned(64 * ROWS).view(np.float32)
    factors, highest = np.empty(BLOCK_QUERIES, np.float32), np.empty(BLOCK_QUERIES, np.float32)
    totals = np.empty(BLOCK_QUERIES, np.float32)
    to_exponent = np.float32(1.4426950408889634 / np.sqrt(width))
    for begin in range(0, count, BLOCK_QUERIES):
        here = min(BLOCK_QUERIES, count - begin)
        for row in range(BLOCK_QUERIES):
            token, peak = min(begin + row, count - 1), QUIETEST
            for place in range(width):
                peak = max(peak, abs(query[token, place]))
            factor = np.float32(127.0) / peak
            for place in range(width):
                rounded[row * bytes_row + place] = np.uint8(np.int32(np.rint(query[token, place] * factor)) + 128)
            for place in range(width, bytes_row):
                rounded[row * bytes_row + place] = np.uint8(128)
            factors[row] = peak / np.float32(127.0) * to_exponent
            highest[row], totals[row] = np.float32(-1e38), np.float32(0.0)
        sums[:] = np.float32(0.0)
        for first in range(0, keys, BLOCK_KEYS):
            for top in range(0, here, ROWS):
                peaks[:] = np.float32(-3e38)
                for column in range(0, BLOCK_KEYS, 64):
                    at = first + column
                    _score_tile(
                        rounded.ctypes.data + top * bytes_row,
                        packed.ctypes.data + at * bytes_row,
                        start.ctypes.data + 4 * at,
                        scale.ctypes.data + 4 * at,
                        bias.ctypes.data + 4 * at,
                        scores.ctypes.data + 4 * column,
                        peaks.ctypes.data,
                        four,
                    )
                for line in range(ROWS):
                    row = top + line
                    peak = _largest(peaks.ctypes.data + 64 * line) * factors[row]
                    if peak > highest[row]:
                        less = np.float32(2.0) ** max(highest[row] - peak, np.float32(-126.0))
                        highest[row] = peak
                        totals[row] *= less
                        for place in range(wide):
                            sums[row * wide + place] *= less
                    totals[row] += _exp_row(
                        scores.ctypes.data + 4 * BLOCK_KEYS * line,
                        weights.ctypes.data + WEIGHT_BYTES * BLOCK_KEYS * line,
                        factors[row],
                        highest[row],
                    )
                _add_weighted(
                    weights.ctypes.data,
                    values.ctypes.data + first * WEIGHT_BYTES * wide,
                    sums.ctypes.data + top * 64 * vectors,
                    vectors,
                )
        for row in range(here):
            share = np.float32(1.0) / totals[row]
            for place in range(width):
                out[begin + row, place] = sums[row * wide + place] * share


def int8_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute attention as `modules.memory.attention` does, for finite values on the CPU outside of autograd: [B,H,T,D]
    in query's dtype. Uses as many threads as PyTorch."""
    batch, heads, count, width = query.shape
    out = torch.empty(batch, count, heads, width).transpose(1, 2)
    threads = torch.get_num_threads()
    tensors = [tensor.detach().float() for tensor in (query, key, value)]
    tasks = list(_tasks([*tensors, out], -(-threads // (batch * heads))))
    if threads == 1 or len(tasks) == 1:
        for task in tasks:
            _attend_head(*task)
    else:
        list(thread_pool(threads).map(lambda task: _attend_head(*task), tasks))
    return out.to(query.dtype)


def _tasks(tensors: list[Tensor], parts: int) -> Iterator[tuple[Any, ...]]:
    """Query, key, value and output of each head, its queries in so many parts."""
    query, key, value, out = (tensor.numpy() for tensor in tensors)
    step = max(LEAST_QUERIES, -(-query.shape[2] // parts))
    for image, head in np.ndindex(*query.shape[:2]):
        for begin in range(0, query.shape[2], step):
            part = slice(begin, begin + step)
            yield query[image, head, part], key[image, head], value[image, head], out[image, head, part]
