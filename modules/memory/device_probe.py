"""Measured speeds of a device, remembered, which decide instead of its name.

Cards of one maker and generation differ by more than their names say: a GTX 16xx multiplies fp16 matrices at a fraction
of fp32's speed and convolves them fast, cards before 2018 gain threefold by int8 products, and drivers give NaN in one
kernel and not in another. Each measurement is checked against float32 on the CPU. One that is wrong, fails, or takes
longer than `LIMIT_S` is left out; where what is usual was not measured, the usual stays.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.memory.attention import ATTENTIONS, AttentionOptions, whole
from modules.memory.formats.codes import as_codes
from modules.memory.formats.format import FORMATS, dtype_name
from modules.memory.int8_matmul import multiply_in_int8
from modules.memory.int8_support import Int8Support, name_of, read_answers, remember_answer
from modules.memory.layer import manage, put
from modules.system.devices import driver_of, synchronize

log = logging.getLogger(__name__)

ROWS, INPUTS, OUTPUTS = 4096, 1280, 1280
CHANNELS, SIDE = 320, 64
HEADS, TOKENS, WIDTH = 8, 2048, 64
COPIED_BYTES = 32 << 20
CHECKED_ROWS = 32
ROUNDS = 4
LIMIT_S, TOTAL_S = 10.0, 18.0
CPU_DIVIDES = 4
"""Sides of what a CPU multiplies, convolves and attends to are so many times shorter."""
SLOW_S = 1.0
"""A measurement that takes so long once is not repeated."""
BETTER_BELOW = 0.7
"""Time of another way over the usual one's from which on it is taken: noise must not decide, and fp32 takes memory."""
BETTER_LAYOUT_BELOW = 0.9
"""Time of another layout over the usual one's, likewise, of a convolution's weights, which takes no memory."""
GROUPS = 8
MAX_ERROR = 0.03
WRONG = "gives wrong numbers"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WAYS = ("sdp", "sub-quadratic", "sliced")

Made = tuple[Callable[[], Tensor], Callable[[Tensor], Tensor] | None, Tensor | None]
"""The work, what part of its result is compared, and what that should be."""


@dataclass(frozen=True)
class Probe:
    """The shortest seconds of each measurement by name, and why others were left out."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    def dtype(self, usual: torch.dtype, other: torch.dtype, works: tuple[str, ...]) -> torch.dtype:
        """Return `other` where it takes clearly less for these works, or the usual dtype is wrong; else `usual`."""
        own, others = ([f"{work} {dtype_name(dtype)}" for work in works] for dtype in (usual, other))
        if any(name not in self.seconds for name in others):
            return usual
        if any(self.problems.get(name) == WRONG for name in own):
            return other
        if any(name not in self.seconds for name in own):
            return usual
        is_better = sum(map(self.seconds.__getitem__, others)) < BETTER_BELOW * sum(map(self.seconds.__getitem__, own))
        return other if is_better else usual

    def int8(self, dtype: torch.dtype) -> Int8Support:
        """Say whether int8 products work, and whether whole layers gain by them, beside `dtype`."""
        name = dtype_name(dtype)
        product, layer = (self._ratio(f"{work} int8", f"{work} {name}") for work in ("product", f"layer {name}"))
        return Int8Support(product, self.problems.get("product int8", "it was not measured"), layer or float("inf"))

    def channels_last(self, dtype: torch.dtype) -> bool:
        """Say whether convolutions take less time, between the norms of a model, with their channels last in memory."""
        ratio = self._ratio(f"block {dtype_name(dtype)}, channels-last", f"block {dtype_name(dtype)}")
        return ratio is not None and ratio < BETTER_LAYOUT_BELOW

    def attention(self) -> str | None:
        """Name the attention to use where PyTorch's own is wrong or clearly slower; None: PyTorch's own."""
        right = {way: self.seconds[f"attention {way}"] for way in WAYS if f"attention {way}" in self.seconds}
        best = min(right, key=right.__getitem__, default=None)
        if best in (None, "sdp") or (self.problems.get("attention sdp") != WRONG and "sdp" not in right):
            return None
        return best if right[best] < BETTER_BELOW * right.get("sdp", float("inf")) else None

    def _ratio(self, name: str, beside: str) -> float | None:
        own, other = self.seconds.get(name), self.seconds.get(beside)
        return None if own is None or not other else round(own / other, 3)


def probe_of(device: torch.device, remembered: Path, again: bool = False) -> Probe:
    """Return what was measured on a device, from the file `remembered`, or measured now; `again`: in any case. What
    measured nothing at all is not remembered."""
    driver = driver_of(device)
    key = f"{name_of(device)}, {f'driver {driver}, ' if driver else ''}PyTorch {torch.__version__}"
    known = read_answers(remembered).get(key)
    if isinstance(known, dict) and isinstance(known.get("seconds"), dict) and not again:
        seconds = {str(name): float(took) for name, took in known["seconds"].items() if isinstance(took, int | float)}
        return Probe(seconds, {str(name): str(why) for name, why in dict(known.get("problems") or {}).items()})
    log.info("Measuring what %s computes fast; this takes some seconds, once", key)
    found = measure(device)
    if found.seconds:
        remember_answer(remembered, key, asdict(found), "What the device computes fast")
    return found


class Limit:
    """Calls in a thread that may take so many seconds. One that hangs is left behind, and nothing is measured beside
    it: the next call first waits for its end."""

    def __init__(self) -> None:
        self._behind: threading.Thread | None = None

    def __call__(self, seconds: float, call: Callable[[], float]) -> float:
        """Return what `call` does. Raises TimeoutError."""
        end = time.monotonic() + seconds
        if self._behind is not None:
            self._behind.join(seconds)
            if self._behind.is_alive():
                raise TimeoutError("left out: the one before it did not end")
        results: list[float | Exception] = []

        def work() -> None:
            try:
                results.append(call())
            except Exception as error:  # for the caller, who waits no longer than for a result
                results.append(error)

        self._behind = threading.Thread(target=work, name="featherweight-probe", daemon=True)
        self._behind.start()
        self._behind.join(max(0.0, end - time.monotonic()))
        if not results:
            raise TimeoutError(f"took more than {seconds:.0f} s")
        if isinstance(results[0], Exception):
            raise results[0]
        return results[0]


def measure(device: torch.device, limited: Callable[[float, Callable[[], float]], float] | None = None) -> Probe:
    """Measure everything, the decisive first, for at most `TOTAL_S`. `limited`: what calls within a time."""
    seconds, problems, end = dict[str, float](), dict[str, str](), time.monotonic() + TOTAL_S
    limited = limited or Limit()
    for name, make in _works(device).items():
        left = min(LIMIT_S, end - time.monotonic())
        if left <= 0:
            problems[name] = "left out: no time was left"
            continue
        try:
            seconds[name] = limited(left, partial(_seconds, device, make))
        except ArithmeticError:
            problems[name] = WRONG
        except Exception as error:  # drivers and builds raise errors of many types; what fails is not used
            problems[name] = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return Probe(seconds, problems)


@torch.inference_mode()
def _seconds(device: torch.device, make: Callable[[], Made]) -> float:
    """The shortest time of a work, after a first one that is checked. Raises ArithmeticError where it is wrong."""
    work, part, true = make()

    def timed() -> tuple[float, Tensor]:
        began = time.perf_counter()
        result = work()
        synchronize(device)
        return time.perf_counter() - began, result

    first, result = timed()
    if true is not None and part is not None:
        lost = float((part(result).float().cpu() - true).norm() / true.norm())
        if not lost < MAX_ERROR:  # NaN is not
            raise ArithmeticError
    return round(min(timed()[0] for _ in range(ROUNDS)) if first < SLOW_S else first, 9)


def _works(device: torch.device) -> dict[str, Callable[[], Made]]:
    """Return what is measured, by name."""
    found: dict[str, Callable[[], Made]] = {}
    dtypes = (torch.float32, torch.bfloat16) if device.type == "cpu" else DTYPES  # CPUs are never asked for fp16
    for dtype in dtypes:
        found[f"product {dtype_name(dtype)}"] = partial(_product, device, dtype)
        found[f"convolution {dtype_name(dtype)}"] = partial(_convolution, device, dtype)
    found["product int8"] = partial(_int8_product, device)
    for dtype in dtypes:
        name = f"layer {dtype_name(dtype)}"
        found[f"{name} {dtype_name(dtype)}"] = partial(_layer, device, dtype, False)
        found[f"{name} int8"] = partial(_layer, device, dtype, True)
    found |= {f"attention {way}": partial(_attention, device, way) for way in WAYS}
    for dtype in dtypes[1:]:
        name = f"block {dtype_name(dtype)}"
        found[name] = partial(_convolution, device, dtype, torch.contiguous_format)
        found[f"{name}, channels-last"] = partial(_convolution, device, dtype, torch.channels_last)
    found["product fp8"] = partial(_fp8_product, device)
    found["copy of 32 MiB"] = partial(_copy, device)
    found["decoding 32 Mi weights of fp8"] = partial(_decoding, device)
    return found


def _side(length: int, device: torch.device) -> int:
    return max(CHECKED_ROWS, length // CPU_DIVIDES) if device.type == "cpu" else length


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _product(device: torch.device, dtype: torch.dtype) -> Made:
    left = _random(_side(ROWS, device), INPUTS).to(dtype)
    right = (_random(OUTPUTS, INPUTS, seed=1) / INPUTS**0.5).to(dtype)
    true = F.linear(left[:CHECKED_ROWS].float(), right.float())
    own, weight = left.to(device), right.to(device)
    return lambda: F.linear(own, weight), lambda result: result[:CHECKED_ROWS], true


def _convolution(device: torch.device, dtype: torch.dtype, layout: torch.memory_format | None = None) -> Made:
    """A convolution; with a layout of its weights, behind norm and activation, as models have it, of an image in the
    layout that the one before has left."""
    side = _side(SIDE, device)

    def work(image: Tensor, kernel: Tensor) -> Tensor:
        normed = image if layout is None else F.silu(F.group_norm(image, GROUPS))
        return F.conv2d(normed, kernel, padding=1)

    image, kernel = _random(1, CHANNELS, side, side).to(dtype), _random(CHANNELS, CHANNELS, 3, 3, seed=1)
    kernel = (kernel / (9 * CHANNELS) ** 0.5).to(dtype)
    true = work(image.float() if layout else image[:, :, :3].float(), kernel.float())[:, :, :2]
    own, weight = (each.to(device, memory_format=layout or torch.contiguous_format) for each in (image, kernel))
    return lambda: work(own, weight), lambda result: result[:, :, :2], true


def _int8_product(device: torch.device) -> Made:
    rows = _side(ROWS, device)
    left, right = ((each * 40).clamp_(-127, 127).round_() for each in (_random(rows, INPUTS), _random(OUTPUTS, INPUTS)))
    left[:2], right[:2] = torch.tensor([[127.0], [-127.0]]), torch.tensor([[127.0], [-127.0]])  # beyond 16-bit sums
    true = left[:CHECKED_ROWS] @ right.t()
    own, weight = left.to(torch.int8).to(device), right.to(torch.int8).to(device)
    return lambda: torch._int_mm(own, weight.t()), lambda result: result[:CHECKED_ROWS], true


def _layer(device: torch.device, dtype: torch.dtype, in_int8: bool) -> Made:
    """A whole layer that is stored in int8: decoded and multiplied, or its input rounded and the sums scaled."""
    storage, weight = FORMATS.get("int8_row"), _random(OUTPUTS, INPUTS, seed=1) / INPUTS**0.5
    encoded, layer = storage.encode(weight), nn.Linear(INPUTS, OUTPUTS, bias=False, device="meta")
    assert encoded.scale is not None
    put(layer, "weight", encoded.data.to(device), encoded.scale.to(device))
    manage(layer, {"weight": storage}, dtype)
    if in_int8:
        multiply_in_int8(layer)
    rows = _random(_side(ROWS, device), INPUTS).to(dtype)
    true = F.linear(rows[:CHECKED_ROWS].float(), weight)
    own = rows.to(device)[None]
    return lambda: layer(own), lambda result: result[0, :CHECKED_ROWS], true


def _attention(device: torch.device, way: str) -> Made:
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    query, key, value = (_random(1, HEADS, _side(TOKENS, device), WIDTH, seed=seed).to(dtype) for seed in range(3))
    true = whole(*(each[:, :1].float() for each in (query, key, value)))
    attention = ATTENTIONS.get(way)(AttentionOptions())
    own = [each.to(device) for each in (query, key, value)]
    return lambda: attention(*own), lambda result: result[:, :1], true


def _fp8_product(device: torch.device) -> Made:
    one = torch.ones((), device=device)
    left, right = (
        _random(size, INPUTS, seed=seed).to(torch.float8_e4m3fn) for seed, size in enumerate((ROWS, OUTPUTS))
    )
    true = F.linear(left[:CHECKED_ROWS].float(), right.float())
    own, weight = left.to(device), right.to(device).t()

    def work() -> Tensor:
        return torch._scaled_mm(own, weight, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return work, lambda result: result[:CHECKED_ROWS], true


def _copy(device: torch.device) -> Made:
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), None, None


def _decoding(device: torch.device) -> Made:
    storage: Any = FORMATS.get("fp8_e4m3fn")
    if device.type == "mps":
        storage = as_codes(storage)
    weight = storage.encode(_random(COPIED_BYTES // 4096, 128).repeat(1, 32)).data.to(device)
    out = torch.empty(weight.shape, dtype=torch.float16, device=device)
    return lambda: storage.decode(weight, None, out), None, None
