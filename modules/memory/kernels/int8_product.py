"""The work around a product of int8 matrices on the CPU, in one compiled pass each: rounding its input, and scaling its
sums.

PyTorch rounds a row in five passes, with two tensors that are made for it, and scales sums in three or four. Here a row
is rounded while it lies in the first cache, and a sum is read once and written once. The numbers are those of
`modules.memory.int8_matmul`, to the bit (with a bias, as PyTorch's vectors of 64 bytes have them: see `_scale_sums`).

Importing this file imports llvmlite.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
LEAST_NUMBERS = 1 << 15
"""For one thread of PyTorch's, as PyTorch has it for operations on elements."""
LEAST_NUMBERS_OF_POOL = 1 << 19
"""For one thread of a pool, which takes longer to wake."""


def compile_all() -> None:
    """Have all functions compiled now, in 0.1 s. Raises what llvmlite does where that fails."""
    _engine()


def round_rows(rows: Tensor, data: Tensor, factors: Tensor) -> bool:
    """Round each row of `rows` [M, in] (float32 or bfloat16) to 127 steps of its largest magnitude into `data` [M, in]
    int8; `factors` [M, 1] float32 are what the codes are to be multiplied with. The last dimensions are contiguous,
    and so are `factors`. False where a number was not finite: what was written means nothing then."""
    most = ctypes.c_uint32(0)
    _run("round_rows", rows.dtype, rows, *_lines(rows), *_lines(data), factors.data_ptr(), ctypes.addressof(most))
    return most.value < INFINITY


def peak_of(rows: Tensor) -> float:
    """The largest magnitude in `rows` [M, in] (float32 or bfloat16, last dimension contiguous); NaN or infinite where
    one of the numbers is."""
    most = ctypes.c_uint32(0)
    _run("peak_of", rows.dtype, rows, *_lines(rows), ctypes.addressof(most))
    return ctypes.c_float.from_buffer(most).value


def round_by(rows: Tensor, factor: float, data: Tensor) -> None:
    """`rows` [M, in] (float32 or bfloat16) times `factor`, rounded into `data` [M, in] int8; the last dimensions are
    contiguous, and no product is beyond 127."""
    bits = ctypes.c_int32.from_buffer(ctypes.c_float(factor)).value
    _run("round_by", rows.dtype, rows, *_lines(rows), *_lines(data), bits)


def scale_sums(sums: Tensor, factors: Tensor | None, scale: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write int32 `sums` [M, out], rows times `factors` [M, 1] (None: 1), columns times `scale` [out], plus `bias`
    [out], into `out` [M, out] (float32 or bfloat16). Factors, scales and bias are float32; all are contiguous."""
    rows = _one() if factors is None else factors
    added = torch.full((sums.shape[1],), -0.0) if bias is None else bias  # the zero that changes no number
    step = 0 if factors is None else rows.itemsize
    vectors = rows.data_ptr(), step, scale.data_ptr(), added.data_ptr()
    _run("scale_sums", out.dtype, sums, *_lines(sums), *_lines(out), *vectors)


def _lines(rows: Tensor) -> tuple[int, int]:
    """Where the rows begin, and the bytes from one to the next."""
    return rows.data_ptr(), rows.stride(0) * rows.itemsize


def _run(name: str, dtype: torch.dtype, rows: Tensor, *arguments: int) -> None:
    """Call a function for all rows [M, width], in as many threads as PyTorch uses: in PyTorch's own where they are
    OpenMP's, as others would wait until those go to sleep."""
    count, width = rows.shape
    address, function = _function(f"{name}_{INPUTS[dtype]}")
    packed = (ctypes.c_int64 * (len(arguments) + 1))(width, *arguments)
    threads, numbers, team = torch.get_num_threads(), count * width, openmp_team()
    parts = min(threads, count, numbers // (LEAST_NUMBERS_OF_POOL if team is None else LEAST_NUMBERS))
    if parts <= 1:
        function(packed, 0, count)
    elif team is not None:
        shared = (ctypes.c_int64 * 5)(address, ctypes.addressof(packed), count, team.thread, team.size)
        team.run(_engine().get_function_address("share"), shared, parts, 0)
    else:
        ends = [count * part // parts for part in range(parts + 1)]
        list(thread_pool(threads).map(lambda part: function(packed, *part), pairwise(ends)))


@dataclass(frozen=True)
class Team:
    """OpenMP's threads: `run(function, argument, threads, 0)` calls a C function in each of some, and at `thread` and
    `size` are functions that say which of how many calls them."""

    run: Callable[..., Any]
    thread: int
    size: int


@cache
def openmp_team() -> Team | None:
    """That of the library that PyTorch has loaded where it has the entries of GCC's; None for another."""
    try:
        library = ctypes.CDLL(None)
        run, *others = library.GOMP_parallel, library.omp_get_thread_num, library.omp_get_num_threads
    except (AttributeError, OSError, TypeError):  # TypeError: Windows, where there is no such thing
        return None
    run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    thread, size = (ctypes.cast(one, ctypes.c_void_p).value or 0 for one in others)
    return Team(run, thread, size)


@cache
def thread_pool(threads: int) -> ThreadPoolExecutor:
    """Return the threads that compute kernels. They are kept, as some kernels take less time than a thread's start."""
    return ThreadPoolExecutor(threads, thread_name_prefix="kernels")


@cache
def _one() -> Tensor:
    return torch.ones(1)


@cache
def _engine() -> llvmlite.binding.ExecutionEngine:
    """Kept for as long as the process runs: the code lies in its memory."""
    fma = f"declare <{LANES} x float> @llvm.fma.v{LANES}f32" + f"({', '.join([f'<{LANES} x float>'] * 3)})"
    parts = [fma, "declare <1 x float> @llvm.fma.v1f32(<1 x float>, <1 x float>, <1 x float>)"]
    parts += [f"declare i32 @llvm.vector.reduce.umax.v{LANES}i32(<{LANES} x i32>)"]
    parts += [f"declare <{LANES} x i32> @llvm.umax.v{LANES}i32(<{LANES} x i32>, <{LANES} x i32>)"]
    parts += ["declare i32 @llvm.umax.i32(i32, i32)", SHARE]
    for dtype, name in INPUTS.items():
        parts += [_peak(dtype, name), _codes(dtype, name), _rows(name), _scale_sums(dtype, name)]
    return compiled("\n".join(parts))


@cache
def _function(name: str) -> tuple[int, Callable[..., None]]:
    """A compiled function and its address: (arguments, first row, row behind the last). It releases the GIL, as every
    one of `ctypes` does."""
    address = _engine().get_function_address(name)
    return address, ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)


SHARE = """
define void @share(ptr %data) {
entry:
  %arguments.at = getelementptr i64, ptr %data, i64 1
  %count.at = getelementptr i64, ptr %data, i64 2
  %thread.at = getelementptr i64, ptr %data, i64 3
  %size.at = getelementptr i64, ptr %data, i64 4
  %function = load ptr, ptr %data
  %arguments = load ptr, ptr %arguments.at
  %count = load i64, ptr %count.at
  %thread.of = load ptr, ptr %thread.at
  %size.of = load ptr, ptr %size.at
  %thread.number = call i32 %thread.of()
  %size.number = call i32 %size.of()
  %thread = zext i32 %thread.number to i64
  %size = zext i32 %size.number to i64
  %next = add i64 %thread, 1
  %before = mul i64 %count, %thread
  %behind = mul i64 %count, %next
  %begin = udiv i64 %before, %size
  %end = udiv i64 %behind, %size
  call void %function(ptr %arguments, i64 %begin, i64 %end)
  ret void
}
"""
"""What each thread of a team calls: its part of the rows."""


def _kernel(name: str, arguments: list[str], lines: list[str]) -> str:
    """A function of rows, from its "type name" of arguments, 8 bytes each. The first is always their width."""
    taken = []
    for place, (of, argument) in enumerate(one.split() for one in ["i64 %width", *arguments]):
        taken += [f"{argument}.at = getelementptr i64, ptr %arguments, i64 {place}"]
        taken += [f"{argument} = load {of}, ptr {argument}.at"]
    return _text(f"void @{name}(ptr %arguments, i64 %begin, i64 %end)", [*taken, *lines, "ret void"])


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
    """The three functions that read numbers."""
    source = ["%row.bytes = mul i64 %row, %from.step", "%numbers = getelementptr i8, ptr %from, i64 %row.bytes"]
    target = ["%row.codes = mul i64 %row, %to.step", "%codes = getelementptr i8, ptr %to, i64 %row.codes"]
    peak = [
        f"%peak = call i32 @peak_{name}(ptr %numbers, i64 %width)",
        "%highest.next = call i32 @llvm.umax.i32(i32 %highest, i32 %peak)",
    ]
    keep = ["%most.before = atomicrmw umax ptr %most, i32 %highest monotonic"]
    code = [f"call void @codes_{name}(ptr %numbers, ptr %codes, float %factor, i64 %width)"]
    smallest = float_constant(ctypes.c_float(SMALLEST_PEAK).value)
    scales = [
        "%exact = bitcast i32 %peak to float",
        f"%is.some = fcmp ogt float %exact, {smallest}",
        f"%size = select i1 %is.some, float %exact, float {smallest}",
        "%share = fdiv float 1.0, %size",
        f"%factor = fmul float %share, {float_constant(LARGEST)}",
        f"%scale = fmul float %size, {float_constant(ctypes.c_float(1 / LARGEST).value)}",
        "%scale.at = getelementptr float, ptr %factors, i64 %row",
        "store float %scale, ptr %scale.at, align 1",
    ]

    def rows(body: list[str], *kept: tuple[str, str, str]) -> list[str]:
        return _loop("row", "%begin", "%end", 1, ("entry", "done"), body, *kept)

    highest = ("i32", "%highest", "0")
    read, written = ["ptr %from", "i64 %from.step"], ["ptr %to", "i64 %to.step"]
    rounding = rows([*source, *target, *peak, *scales, *code], highest)
    return "\n".join(
        [
            _kernel(f"round_rows_{name}", [*read, *written, "ptr %factors", "ptr %most"], [*rounding, *keep]),
            _kernel(f"peak_of_{name}", [*read, "ptr %most"], [*rows([*source, *peak], highest), *keep]),
            _kernel(f"round_by_{name}", [*read, *written, "float %factor"], rows([*source, *target, *code])),
        ]
    )


def _scale_sums(dtype: torch.dtype, name: str) -> str:
    """The function that scales sums. The product with a scale and the sum with a bias are one operation, rounded once,
    as compilers make them of PyTorch's `addcmul`."""
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
        "%row.sums = mul i64 %row, %sums.step",
        "%from = getelementptr i8, ptr %sums, i64 %row.sums",
        "%row.out = mul i64 %row, %out.step",
        "%to = getelementptr i8, ptr %out, i64 %row.out",
        "%row.factor = mul i64 %row, %step",
        "%factor.at = getelementptr i8, ptr %factors, i64 %row.factor",
        "%factor = load float, ptr %factor.at, align 1",
        f"%even = and i64 %width, {-LANES}",
        *_loop("c", "0", "%even", LANES, ("row.body", "rest"), body("c", LANES)),
        *_loop("t", "%even", "%width", 1, ("rest", "written"), body("t", 1)),
    ]
    matrices = ["ptr %sums", "i64 %sums.step", "ptr %out", "i64 %out.step"]
    vectors = ["ptr %factors", "i64 %step", "ptr %scales", "ptr %biases"]
    lines = _loop("row", "%begin", "%end", 1, ("entry", "done"), row)
    return _kernel(f"scale_sums_{name}", [*matrices, *vectors], lines)
