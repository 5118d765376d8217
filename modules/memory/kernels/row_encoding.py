"""Encoding rows to 8 bits with a scale per row, on the CPU: one compiled pass instead of five of PyTorch.

A row's peak, its scale and its codes are made while the row lies in the first cache. The numbers are those of
`modules.memory.formats.rowwise.RowFormat`, to the bit. The code is written for LLVM here and compiled by llvmlite, the
compiler that numba brings, because importing numba itself takes longer than encoding a model with it saves.

16-bit numbers are divided by a multiplication with the reciprocal and one correction by the remainder, both fused: the
quotient is then within 2^-46 of the true one before it is rounded to float32. A scale has 8 bits, a number at most 11
and a place between two codes 8, so that a quotient either is such a place or is 2^-17 of itself away from it: it comes
to the same code as the quotient that a division rounds. float32 numbers are divided.

Importing this file imports llvmlite.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import llvmlite.binding
import torch
from torch import Tensor

from modules.memory.kernels.llvm import broadcast, compiled, float_constant, repeated

LANES = 16
INPUTS = {torch.float16: "half", torch.bfloat16: "bfloat", torch.float32: "float"}
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
INFINITY = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80, torch.float32: 0x7F800000}
"""The bits of infinity; those of NaN are larger."""


def row_encoder_of(source: torch.dtype, target: torch.dtype) -> Callable[[Tensor, Tensor, Tensor], bool] | None:
    """Return what encodes rows of float16, bfloat16 or float32 as e4m3fn or int8, compiled here, in 0.01 s; None for
    other dtypes. Releases the GIL, as every function of `ctypes` does.

    It takes numbers [rows, width] of `source`, and writes the codes [rows, width] of `target` and the scales [rows] in
    float32; both are contiguous, all three on the CPU. Returns whether all numbers were finite; if not, what was
    written means nothing. Raises `ValueError` for other tensors."""
    if source not in INPUTS or target not in LARGEST:
        return None
    name = f"encode_{INPUTS[source]}_{'int8' if target == torch.int8 else 'e4m3'}"
    engine = _engine(source, target, name)
    function = ctypes.CFUNCTYPE(ctypes.c_uint32, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)(
        engine.get_function_address(name)
    )

    def encode(part: Tensor, data: Tensor, scales: Tensor) -> bool:
        rows, width = part.shape
        is_meant = (part.dtype, data.dtype, scales.dtype) == (source, target, torch.float32)
        has_room = data.shape == part.shape and scales.shape == (rows,)
        if not (is_meant and has_room and data.is_contiguous() and scales.is_contiguous()):
            raise ValueError(f"Rows {tuple(part.shape)} of {source} need as many codes of {target}, and a scale each.")
        part = part.contiguous()
        most: int = function(part.data_ptr(), data.data_ptr(), scales.data_ptr(), rows, width)
        return most < INFINITY[source]

    return encode


@cache
def _engine(source: torch.dtype, target: torch.dtype, name: str) -> llvmlite.binding.ExecutionEngine:
    """Kept for as long as the process runs: the code lies in its memory."""
    return compiled(_program(name, source, target))


def _program(name: str, source: torch.dtype, target: torch.dtype) -> str:
    """The function in LLVM's language: (numbers, codes, scales, rows, width) -> the largest magnitude's bits."""
    bits = 8 * source.itemsize
    integer, magnitude = f"i{bits}", (1 << bits - 1) - 1
    to_float = {
        torch.float16: "%high = bitcast i16 %peak to half\n  %wide = fpext half %high to float",
        torch.bfloat16: "%low = zext i16 %peak to i32\n  %up = shl i32 %low, 16\n  %wide = bitcast i32 %up to float",
        torch.float32: "%wide = bitcast i32 %peak to float",
    }[source]
    many = f"<{2 * LANES} x {integer}>"
    highest = f"call {many} @llvm.umax.v{2 * LANES}{integer}"
    return f"""
declare {integer} @llvm.vector.reduce.umax.v{2 * LANES}{integer}({many})
declare {many} @llvm.umax.v{2 * LANES}{integer}({many}, {many})
declare {integer} @llvm.umax.{integer}({integer}, {integer})
declare float @llvm.maxnum.f32(float, float)
declare <{LANES} x float> @llvm.fma.v{LANES}f32(<{LANES} x float>, <{LANES} x float>, <{LANES} x float>)
declare <1 x float> @llvm.fma.v1f32(<1 x float>, <1 x float>, <1 x float>)

define i32 @{name}(ptr noalias %numbers, ptr noalias %codes, ptr noalias %scales, i64 %rows, i64 %width) {{
entry:
  %even2 = and i64 %width, {-2 * LANES}
  %even = and i64 %width, {-LANES}
  br label %row.head
row.head:
  %row = phi i64 [0, %entry], [%row.next, %row.end]
  %most = phi {integer} [0, %entry], [%most.next, %row.end]
  %going = icmp slt i64 %row, %rows
  br i1 %going, label %row.begin, label %leave
row.begin:
  %first = mul i64 %row, %width
  %source = getelementptr {integer}, ptr %numbers, i64 %first
  %target = getelementptr i8, ptr %codes, i64 %first
  br label %peaks.head
peaks.head:
  %p = phi i64 [0, %row.begin], [%p.next, %peaks.body]
  %highs = phi {many} [zeroinitializer, %row.begin], [%highs.next, %peaks.body]
  %p.going = icmp slt i64 %p, %even2
  br i1 %p.going, label %peaks.body, label %peaks.end
peaks.body:
  %p.at = getelementptr {integer}, ptr %source, i64 %p
  %p.bits = load {many}, ptr %p.at, align 1
  %p.size = and {many} %p.bits, {repeated(integer, magnitude, 2 * LANES)}
  %highs.next = {highest}({many} %highs, {many} %p.size)
  %p.next = add i64 %p, {2 * LANES}
  br label %peaks.head
peaks.end:
  %highest = call {integer} @llvm.vector.reduce.umax.v{2 * LANES}{integer}({many} %highs)
  br label %rest.head
rest.head:
  %t = phi i64 [%even2, %peaks.end], [%t.next, %rest.body]
  %peak = phi {integer} [%highest, %peaks.end], [%peak.next, %rest.body]
  %t.going = icmp slt i64 %t, %width
  br i1 %t.going, label %rest.body, label %scale
rest.body:
  %t.at = getelementptr {integer}, ptr %source, i64 %t
  %t.bits = load {integer}, ptr %t.at, align 1
  %t.size = and {integer} %t.bits, {magnitude}
  %peak.next = call {integer} @llvm.umax.{integer}({integer} %peak, {integer} %t.size)
  %t.next = add i64 %t, 1
  br label %rest.head
scale:
  %most.next = call {integer} @llvm.umax.{integer}({integer} %most, {integer} %peak)
  {to_float}
  %exact = fdiv float %wide, {float_constant(LARGEST[target])}
  %exact.bits = bitcast float %exact to i32
  %more = add i32 %exact.bits, 65535
  %short = and i32 %more, -65536
  %upper = bitcast i32 %short to float
  %normal = call float @llvm.maxnum.f32(float %upper, float {float_constant(2.0**-126)})
  %is.some = fcmp ogt float %exact, 0.0
  %s = select i1 %is.some, float %normal, float 1.0
  %s.at = getelementptr float, ptr %scales, i64 %row
  store float %s, ptr %s.at, align 1
  %s.bits = bitcast float %s to i32
  %s.exponent = and i32 %s.bits, 2139095040
  %power.bits = sub i32 2130706432, %s.exponent
  %power = bitcast i32 %power.bits to float
  %m = fmul float %s, %power
  %r = fdiv float 1.0, %m
  br label %codes.head
codes.head:
  %c = phi i64 [0, %scale], [%c.next, %codes.body]
  %c.going = icmp slt i64 %c, %even
  br i1 %c.going, label %codes.body, label %last.head
codes.body:
{_codes("c", LANES, source, target)}
  %c.next = add i64 %c, {LANES}
  br label %codes.head
last.head:
  %l = phi i64 [%even, %codes.head], [%l.next, %last.body]
  %l.going = icmp slt i64 %l, %width
  br i1 %l.going, label %last.body, label %row.end
last.body:
{_codes("l", 1, source, target)}
  %l.next = add i64 %l, 1
  br label %last.head
row.end:
  %row.next = add i64 %row, 1
  br label %row.head
leave:
  %result = {"add i32 %most, 0" if bits == 32 else "zext i16 %most to i32"}
  ret i32 %result
}}
"""


def _codes(at: str, lanes: int, source: torch.dtype, target: torch.dtype) -> str:
    """The codes of the numbers from `at` on, so many at a time."""
    bits = 8 * source.itemsize
    integer = f"<{lanes} x i{bits}>"
    floats, ints, codes = (f"<{lanes} x {kind}>" for kind in ("float", "i32", "i8"))

    def whole(number: int) -> str:
        return repeated("i32", number, lanes)

    def everywhere(name: str) -> list[str]:
        return broadcast(f"%{at}.{name}", f"%{name}", lanes)

    lines = [
        f"%{at}.at = getelementptr i{bits}, ptr %source, i64 %{at}",
        f"%{at}.bits = load {integer}, ptr %{at}.at, align 1",
        f"%{at}.size = and {integer} %{at}.bits, {repeated(f'i{bits}', (1 << bits - 1) - 1, lanes)}",
    ]
    if source == torch.float16:
        lines += [f"%{at}.half = bitcast {integer} %{at}.size to <{lanes} x half>"]
        lines += [f"%{at}.x = fpext <{lanes} x half> %{at}.half to {floats}"]
    elif source == torch.bfloat16:
        lines += [f"%{at}.zero = zext {integer} %{at}.size to {ints}"]
        lines += [f"%{at}.up = shl {ints} %{at}.zero, {whole(16)}"]
        lines += [f"%{at}.x = bitcast {ints} %{at}.up to {floats}"]
    else:
        lines += [f"%{at}.x = bitcast {ints} %{at}.size to {floats}"]
    if source == torch.float32:
        lines += [*everywhere("s"), f"%{at}.q = fdiv {floats} %{at}.x, %{at}.s"]
    else:
        fma = f"call {floats} @llvm.fma.v{lanes}f32"
        lines += [*everywhere("power"), *everywhere("m"), *everywhere("r")]
        lines += [
            f"%{at}.y = fmul {floats} %{at}.x, %{at}.power",
            f"%{at}.near = fmul {floats} %{at}.y, %{at}.r",
            f"%{at}.minus = fneg {floats} %{at}.near",
            f"%{at}.left = {fma}({floats} %{at}.minus, {floats} %{at}.m, {floats} %{at}.y)",
            f"%{at}.q = {fma}({floats} %{at}.left, {floats} %{at}.r, {floats} %{at}.near)",
        ]
    sign = f"%{at}.negative = icmp slt {integer} %{at}.bits, zeroinitializer"
    if target == torch.int8:  # added, 2^23 leaves a number's whole part, rounded, in the last bits
        lines += [
            f"%{at}.shifted = fadd {floats} %{at}.q, {repeated('float', float_constant(2.0**23), lanes)}",
            f"%{at}.whole = bitcast {floats} %{at}.shifted to {ints}",
            f"%{at}.byte = trunc {ints} %{at}.whole to {codes}",
            f"%{at}.minus.byte = sub {codes} zeroinitializer, %{at}.byte",
            sign,
            f"%{at}.code = select <{lanes} x i1> %{at}.negative, {codes} %{at}.minus.byte, {codes} %{at}.byte",
        ]
    else:  # rounded at bit 20 of float32; below 2^-6 by adding 2^14, whose last bit is the smallest e4m3 number
        lines += [
            f"%{at}.n = bitcast {floats} %{at}.q to {ints}",
            f"%{at}.n.down = lshr {ints} %{at}.n, {whole(20)}",
            f"%{at}.odd = and {ints} %{at}.n.down, {whole(1)}",
            f"%{at}.moved = add {ints} %{at}.n, {whole(0x7FFFF - (120 << 23))}",
            f"%{at}.even = add {ints} %{at}.moved, %{at}.odd",
            f"%{at}.large = lshr {ints} %{at}.even, {whole(20)}",
            f"%{at}.added = fadd {floats} %{at}.q, {repeated('float', float_constant(2.0**14), lanes)}",
            f"%{at}.added.bits = bitcast {floats} %{at}.added to {ints}",
            f"%{at}.is.small = icmp ult {ints} %{at}.n, {whole(121 << 23)}",
            f"%{at}.either = select <{lanes} x i1> %{at}.is.small, {ints} %{at}.added.bits, {ints} %{at}.large",
            f"%{at}.byte = trunc {ints} %{at}.either to {codes}",
            sign,
            f"%{at}.signed = or {codes} %{at}.byte, {repeated('i8', -128, lanes)}",
            f"%{at}.code = select <{lanes} x i1> %{at}.negative, {codes} %{at}.signed, {codes} %{at}.byte",
        ]
    lines += [
        f"%{at}.to = getelementptr i8, ptr %target, i64 %{at}",
        f"store {codes} %{at}.code, ptr %{at}.to, align 1",
    ]
    return "\n".join(f"  {line}" for line in lines)
