"""What lies around a product of int8 matrices on the CPU, in one compiled pass each: rounding its input, and scaling
its sums.

PyTorch rounds a row in five passes, with two tensors that are made for it, and scales sums in three or four. Here a row
is rounded while it lies in the first cache, and a sum is read once and written once. The numbers are those of
`modules.memory.int8_matmul`, to the bit (with a bias, as PyTorch's vectors of 64 bytes have them: see `_scale_sums`).

Importing this file imports llvmlite.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import llvmlite.binding
import torch
from torch import Tensor

from modules.memory.kernels.llvm import broadcast, compiled, float_constant, repeated

LANES = 32
INPUTS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
INFINITY = 0x7F800000
"""The bits of infinity in float32; those of NaN are larger."""
LARGEST, SMALLEST_PEAK = 127.0, 1e-12
WHOLE = 1.5 * 2**23
"""Added, it leaves a float32 number's whole part, rounded half to even, in the last bits."""
LEAST_NUMBERS = 1 << 16
"""For one thread: fewer take less time than it takes to wake one."""


def compile_all() -> None:
    """Have all functions compiled now, in 0.1 s. Raises what llvmlite does where that fails."""
    _engine()


def round_rows(rows: Tensor, data: Tensor, factors: Tensor) -> bool:
    """Round each row of `rows` [M, in] (float32 or bfloat16) to 127 steps of its largest magnitude into `data` [M, in]
    int8; `factors` [M, 1] float32 are what the codes are to be multiplied with. The last dimension of all is
    contiguous, and so are `factors`. False where a number was not finite: what was written means nothing then."""
    count, width = rows.shape
    function = _function(f"round_rows_{INPUTS[rows.dtype]}")
    from_bytes, to_bytes = rows.stride(0) * rows.itemsize, data.stride(0)
    source, target, scales = rows.data_ptr(), data.data_ptr(), factors.data_ptr()

    def work(begin: int, end: int) -> int:
        return int(
            function(
                source + begin * from_bytes,
                target + begin * to_bytes,
                scales + 4 * begin,
                end - begin,
                width,
                from_bytes,
                to_bytes,
            )
        )

    return max(_in_threads(work, count, width), default=0) < INFINITY


def peak_of(rows: Tensor) -> float:
    """The largest magnitude in `rows` [M, in] (float32 or bfloat16, last dimension contiguous); NaN or infinite where
    one of the numbers is."""
    count, width = rows.shape
    function = _function(f"peak_of_rows_{INPUTS[rows.dtype]}")
    step, source = rows.stride(0) * rows.itemsize, rows.data_ptr()

    def work(begin: int, end: int) -> int:
        return int(function(source + begin * step, end - begin, width, step))

    bits = max(_in_threads(work, count, width), default=0)
    return float(torch.tensor(bits, dtype=torch.int32).view(torch.float32))


def round_by(rows: Tensor, factor: float, data: Tensor) -> None:
    """`rows` [M, in] (float32 or bfloat16) times `factor`, rounded into `data` [M, in] int8; the last dimensions are
    contiguous, and no product is beyond 127."""
    count, width = rows.shape
    function = _function(f"round_by_{INPUTS[rows.dtype]}")
    from_bytes, to_bytes = rows.stride(0) * rows.itemsize, data.stride(0)
    source, target = rows.data_ptr(), data.data_ptr()

    def work(begin: int, end: int) -> None:
        function(
            source + begin * from_bytes, target + begin * to_bytes, factor, end - begin, width, from_bytes, to_bytes
        )

    _in_threads(work, count, width)


def scale_sums(sums: Tensor, factors: Tensor | None, scale: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write int32 `sums` [M, out], rows times `factors` [M, 1] (None: 1), columns times `scale` [out], plus `bias`
    [out], into `out` [M, out] (float32 or bfloat16). Factors, scales and bias are float32; all are contiguous."""
    count, width = sums.shape
    function = _function(f"scale_sums_{INPUTS[out.dtype]}")
    rows = _ones() if factors is None else factors
    added = torch.full((width,), -0.0) if bias is None else bias  # the zero that changes no number
    step = 0 if factors is None else 4
    source, target, each = sums.data_ptr(), out.data_ptr(), rows.data_ptr()
    columns, biases, size = scale.data_ptr(), added.data_ptr(), width * out.itemsize

    def work(begin: int, end: int) -> None:
        function(
            source + 4 * width * begin,
            target + size * begin,
            each + step * begin,
            columns,
            biases,
            end - begin,
            width,
            step,
        )

    _in_threads(work, count, width)


def _in_threads(work: Callable[[int, int], Any], count: int, width: int) -> list[Any]:
    """Do `work` for rows from one to another, in as many threads as PyTorch uses."""
    parts = max(1, min(torch.get_num_threads(), count * width // LEAST_NUMBERS, count))
    if parts == 1:
        return [work(0, count)]
    ends = [count * part // parts for part in range(parts + 1)]
    pool = _pool(torch.get_num_threads())
    first, *others = pairwise(ends)
    waiting = [pool.submit(work, *part) for part in others]
    return [work(*first), *(one.result() for one in waiting)]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Kept: a kernel takes less time than it takes to start a thread."""
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="int8-product")


@cache
def _ones() -> Tensor:
    return torch.ones(1)


@cache
def _engine() -> llvmlite.binding.ExecutionEngine:
    """Kept for as long as the process runs: the code lies in its memory."""
    fma = f"declare <{LANES} x float> @llvm.fma.v{LANES}f32" + f"({', '.join([f'<{LANES} x float>'] * 3)})"
    parts = [fma, "declare <1 x float> @llvm.fma.v1f32(<1 x float>, <1 x float>, <1 x float>)"]
    parts += [f"declare i32 @llvm.vector.reduce.umax.v{LANES}i32(<{LANES} x i32>)"]
    parts += [f"declare <{LANES} x i32> @llvm.umax.v{LANES}i32(<{LANES} x i32>, <{LANES} x i32>)"]
    parts += ["declare i32 @llvm.umax.i32(i32, i32)"]
    for dtype, name in INPUTS.items():
        parts += [_peak(dtype, name), _codes(dtype, name), _rows(name), _scale_sums(dtype, name)]
    return compiled("\n".join(parts))


@cache
def _function(name: str) -> Callable[..., Any]:
    """A compiled function. It releases the GIL, as every one of `ctypes` does."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "round_rows": (ctypes.c_uint32, [pointer] * 3 + [number] * 4),
        "peak_of_rows": (ctypes.c_uint32, [pointer] + [number] * 3),
        "round_by": (None, [pointer] * 2 + [ctypes.c_float] + [number] * 4),
        "scale_sums": (None, [pointer] * 5 + [number] * 3),
    }
    result, taken = signatures[name.rpartition("_")[0]]
    return ctypes.CFUNCTYPE(result, *taken)(_engine().get_function_address(name))


def _loop(
    at: str,
    begin: str,
    end: str,
    step: int,
    blocks: tuple[str, str],
    body: list[str],
    kept: tuple[str, str, str] | None = None,
) -> list[str]:
    """Lines of a loop with the counter `at`. `blocks`: from which it is entered, and which follows. `kept`: type, name
    and first value of what the body makes `name`.next of."""
    came_from, then = blocks
    return [
        f"br label %{at}.head",
        f"{at}.head:",
        f"%{at} = phi i64 [{begin}, %{came_from}], [%{at}.next, %{at}.end]",
        *(
            []
            if kept is None
            else [f"{kept[1]} = phi {kept[0]} [{kept[2]}, %{came_from}], [{kept[1]}.next, %{at}.end]"]
        ),
        f"%{at}.going = icmp slt i64 %{at}, {end}",
        f"br i1 %{at}.going, label %{at}.body, label %{then}",
        f"{at}.body:",
        *body,
        f"br label %{at}.end",
        f"{at}.end:",
        f"%{at}.next = add i64 %{at}, {step}",
        f"br label %{at}.head",
        f"{then}:",
    ]


def _read(at: str, dtype: torch.dtype, lanes: int) -> list[str]:
    """Lines that read float32 numbers `at`.x from %numbers on."""
    floats, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
    if dtype == torch.float32:
        return [
            f"%{at}.at = getelementptr float, ptr %numbers, i64 %{at}",
            f"%{at}.x = load {floats}, ptr %{at}.at, align 1",
        ]
    return [
        f"%{at}.at = getelementptr i16, ptr %numbers, i64 %{at}",
        f"%{at}.short = load <{lanes} x i16>, ptr %{at}.at, align 1",
        f"%{at}.wide = zext <{lanes} x i16> %{at}.short to {ints}",
        f"%{at}.up = shl {ints} %{at}.wide, {repeated('i32', 16, lanes)}",
        f"%{at}.x = bitcast {ints} %{at}.up to {floats}",
    ]


def _text(head: str, lines: list[str]) -> str:
    return "\n".join([f"define {head} {{", "entry:", *lines, "}"])


def _peak(dtype: torch.dtype, name: str) -> str:
    """(numbers, width) -> the bits of the largest magnitude in float32, of one row."""
    highs = f"<{LANES} x i32>"

    def body(at: str, lanes: int) -> list[str]:
        ints = f"<{lanes} x i32>"
        return [
            *_read(at, dtype, lanes),
            f"%{at}.bits = bitcast <{lanes} x float> %{at}.x to {ints}",
            f"%{at}.size = and {ints} %{at}.bits, {repeated('i32', 0x7FFFFFFF, lanes)}",
        ]

    many = [*body("p", LANES), f"%highs.next = call {highs} @llvm.umax.v{LANES}i32({highs} %highs, {highs} %p.size)"]
    one = [
        *body("t", 1),
        "%t.number = extractelement <1 x i32> %t.size, i32 0",
        "%peak.next = call i32 @llvm.umax.i32(i32 %peak, i32 %t.number)",
    ]
    return _text(
        f"internal i32 @peak_{name}(ptr %numbers, i64 %width)",
        [
            f"%even = and i64 %width, {-LANES}",
            *_loop("p", "0", "%even", LANES, ("entry", "rest"), many, (highs, "%highs", "zeroinitializer")),
            f"%highest = call i32 @llvm.vector.reduce.umax.v{LANES}i32({highs} %highs)",
            *_loop("t", "%even", "%width", 1, ("rest", "end"), one, ("i32", "%peak", "%highest")),
            "ret i32 %peak",
        ],
    )


def _codes(dtype: torch.dtype, name: str) -> str:
    """(numbers, codes, factor, width): one row times the factor, rounded."""

    def body(at: str, lanes: int) -> list[str]:
        floats, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
        return [
            *_read(at, dtype, lanes),
            *broadcast(f"%{at}.factor", "%factor", lanes),
            f"%{at}.steps = fmul {floats} %{at}.x, %{at}.factor",
            f"%{at}.moved = fadd {floats} %{at}.steps, {repeated('float', float_constant(WHOLE), lanes)}",
            f"%{at}.whole = bitcast {floats} %{at}.moved to {ints}",
            f"%{at}.code = trunc {ints} %{at}.whole to <{lanes} x i8>",
            f"%{at}.to = getelementptr i8, ptr %codes, i64 %{at}",
            f"store <{lanes} x i8> %{at}.code, ptr %{at}.to, align 1",
        ]

    return _text(
        f"internal void @codes_{name}(ptr %numbers, ptr %codes, float %factor, i64 %width)",
        [
            f"%even = and i64 %width, {-LANES}",
            *_loop("c", "0", "%even", LANES, ("entry", "rest"), body("c", LANES)),
            *_loop("t", "%even", "%width", 1, ("rest", "end"), body("t", 1)),
            "ret void",
        ],
    )


def _rows(name: str) -> str:
    """The three functions of many rows. Their first and last arguments are addresses and strides in bytes."""
    source = ["%begin = mul i64 %row, %from", "%numbers = getelementptr i8, ptr %first, i64 %begin"]
    target = ["%begin.codes = mul i64 %row, %to", "%codes = getelementptr i8, ptr %first.codes, i64 %begin.codes"]
    most = [
        f"%peak = call i32 @peak_{name}(ptr %numbers, i64 %width)",
        "%most.next = call i32 @llvm.umax.i32(i32 %most, i32 %peak)",
    ]
    code = [f"call void @codes_{name}(ptr %numbers, ptr %codes, float %factor, i64 %width)"]
    smallest = float_constant(ctypes.c_float(SMALLEST_PEAK).value)
    scales = [
        "%exact = bitcast i32 %peak to float",
        f"%is.some = fcmp ogt float %exact, {smallest}",
        f"%size = select i1 %is.some, float %exact, float {smallest}",
        "%share = fdiv float 1.0, %size",
        f"%factor = fmul float %share, {float_constant(LARGEST)}",
        f"%scale = fmul float %size, {float_constant(ctypes.c_float(1 / LARGEST).value)}",
        "%scale.at = getelementptr float, ptr %scales, i64 %row",
        "store float %scale, ptr %scale.at, align 1",
    ]

    def rows(body: list[str], *kept: tuple[str, str, str]) -> list[str]:
        return _loop("row", "0", "%rows", 1, ("entry", "end"), body, *kept)

    highest = ("i32", "%most", "0")
    strides = "i64 %rows, i64 %width, i64 %from"
    return "\n".join(
        [
            _text(
                f"i32 @round_rows_{name}(ptr %first, ptr %first.codes, ptr %scales, {strides}, i64 %to)",
                [*rows([*source, *target, *most, *scales, *code], highest), "ret i32 %most"],
            ),
            _text(
                f"i32 @peak_of_rows_{name}(ptr %first, {strides})",
                [*rows([*source, *most], highest), "ret i32 %most"],
            ),
            _text(
                f"void @round_by_{name}(ptr %first, ptr %first.codes, float %factor, {strides}, i64 %to)",
                [*rows([*source, *target, *code]), "ret void"],
            ),
        ]
    )


def _scale_sums(dtype: torch.dtype, name: str) -> str:
    """(sums, out, factors, scales, biases, rows, width, bytes from one factor to the next).

    The product with the scale and the sum with the bias are one operation, rounded once, as compilers make them of
    PyTorch's `addcmul`."""
    bits = 8 * dtype.itemsize

    def body(at: str, lanes: int) -> list[str]:
        floats, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
        lines = [
            f"%{at}.at = getelementptr i32, ptr %from, i64 %{at}",
            f"%{at}.sum = load {ints}, ptr %{at}.at, align 1",
            f"%{at}.wide = sitofp {ints} %{at}.sum to {floats}",
            *broadcast(f"%{at}.factor", "%factor", lanes),
            f"%{at}.row = fmul {floats} %{at}.wide, %{at}.factor",
            f"%{at}.scale.at = getelementptr float, ptr %scales, i64 %{at}",
            f"%{at}.scale = load {floats}, ptr %{at}.scale.at, align 1",
            f"%{at}.bias.at = getelementptr float, ptr %biases, i64 %{at}",
            f"%{at}.bias = load {floats}, ptr %{at}.bias.at, align 1",
            f"%{at}.y = call {floats} @llvm.fma.v{lanes}f32"
            f"({floats} %{at}.row, {floats} %{at}.scale, {floats} %{at}.bias)",
            f"%{at}.to = getelementptr i{bits}, ptr %to, i64 %{at}",
        ]
        if dtype == torch.float32:
            return [*lines, f"store {floats} %{at}.y, ptr %{at}.to, align 1"]
        return [  # to the nearest bfloat16, half to even
            *lines,
            f"%{at}.bits = bitcast {floats} %{at}.y to {ints}",
            f"%{at}.down = lshr {ints} %{at}.bits, {repeated('i32', 16, lanes)}",
            f"%{at}.odd = and {ints} %{at}.down, {repeated('i32', 1, lanes)}",
            f"%{at}.more = add {ints} %{at}.bits, {repeated('i32', 0x7FFF, lanes)}",
            f"%{at}.even = add {ints} %{at}.more, %{at}.odd",
            f"%{at}.short = lshr {ints} %{at}.even, {repeated('i32', 16, lanes)}",
            f"%{at}.no.number = fcmp uno {floats} %{at}.y, %{at}.y",
            f"%{at}.kept = select <{lanes} x i1> %{at}.no.number, {ints} {repeated('i32', 0x7FC0, lanes)},"
            f" {ints} %{at}.short",
            f"%{at}.out = trunc {ints} %{at}.kept to <{lanes} x i16>",
            f"store <{lanes} x i16> %{at}.out, ptr %{at}.to, align 1",
        ]

    row = [
        "%begin = mul i64 %row, %width",
        "%from = getelementptr i32, ptr %sums, i64 %begin",
        f"%to = getelementptr i{bits}, ptr %out, i64 %begin",
        "%begin.factor = mul i64 %row, %step",
        "%factor.at = getelementptr i8, ptr %factors, i64 %begin.factor",
        "%factor = load float, ptr %factor.at, align 1",
        f"%even = and i64 %width, {-LANES}",
        *_loop("c", "0", "%even", LANES, ("row.body", "rest"), body("c", LANES)),
        *_loop("t", "%even", "%width", 1, ("rest", "written"), body("t", 1)),
    ]
    head = "ptr noalias %sums, ptr noalias %out, ptr noalias %factors, ptr noalias %scales, ptr noalias %biases"
    lines = _loop("row", "0", "%rows", 1, ("entry", "end"), row)
    return _text(f"void @scale_sums_{name}({head}, i64 %rows, i64 %width, i64 %step)", [*lines, "ret void"])
