"""How much a module computes, counted without computing it, and how fast a device is: together the time it takes.

An operation takes as long as its multiplications, at the speed of a matrix product, and as long as it reads and writes
its tensors, at the speed of a copy. Both speeds are measured in a fraction of a second. The sum is rough: other
programs on the machine, and kernels that are better or worse than a product, are not known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from modules.memory.dry_run import Outcomes

ROUNDS = 8
SIDES = {"cpu": 512}
SIDE = 4096
"""Of the matrices in the product that is timed, by type of device, and of all others."""
COPIED_BYTES = {"cpu": 32 << 20}
COPIED = 256 << 20
SENT_BYTES = 64 << 20


@dataclass(frozen=True)
class Work:
    """`operations`: multiplications and additions in products, convolutions and attention; `touched_bytes`: what all
    operations read and write; `sent_bytes`: weights that come from main memory to the device meanwhile."""

    operations: int = 0
    touched_bytes: int = 0
    sent_bytes: int = 0

    def seconds(self, speed: Speed) -> float:
        """On a device of this speed. What is sent comes while it computes."""
        computing = self.operations / speed.operations_per_s + self.touched_bytes / speed.touched_bytes_per_s
        return max(computing, self.sent_bytes / speed.sent_bytes_per_s)


@dataclass(frozen=True)
class Speed:
    """The speed of a device: operations of a matrix product, bytes that an operation reads and writes, and bytes that
    come from main memory, each per second."""

    operations_per_s: float
    touched_bytes_per_s: float
    sent_bytes_per_s: float


def measure_speed(device: torch.device, dtype: torch.dtype) -> Speed:
    """The speed of a device in a dtype: the best of a few measurements of milliseconds each, between which other
    programs may run. Raises RuntimeError where the device cannot compute in that dtype."""
    side = SIDES.get(device.type, SIDE)
    with torch.no_grad():
        left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
        product = torch.empty_like(left)
        product_s = _best_s(lambda: torch.mm(left, right, out=product), device)
        source = torch.ones(COPIED_BYTES.get(device.type, COPIED) // dtype.itemsize, dtype=dtype, device=device)
        target = torch.empty_like(source)
        copy_s = _best_s(lambda: torch.add(source, 1, out=target), device)
        touched = 2 * source.numel() * dtype.itemsize / copy_s
        sent = touched
        if device.type != "cpu":
            weights = torch.empty(SENT_BYTES, dtype=torch.uint8)
            sent = SENT_BYTES / _best_s(lambda: weights.to(device), device)
    return Speed(2 * side**3 / product_s, touched, sent)


def _best_s(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the quickest of some runs; the one before them fills caches and chooses kernels."""
    best = float("inf")
    for number in range(ROUNDS + 1):
        began = time.perf_counter()
        run()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        if number:
            best = min(best, time.perf_counter() - began)
    return max(best, 1e-9)


class WorkCounter(TorchDispatchMode):
    """Counts what is computed while it is open; for `observe` of a dry run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._outcomes = Outcomes()
        self.operations = 0
        self.touched_bytes = 0

    @property
    def work(self) -> Work:
        """Return the work that was counted so far."""
        return Work(self.operations, self.touched_bytes)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention as kernels compute it that never hold the scores: the output's shape, and its work counted."""
        result = query.new_empty(*query.shape[:-1], value.shape[-1])
        self.operations += 2 * key.shape[-2] * (query.numel() + result.numel())
        self.touched_bytes += sum(map(_bytes, (query, key, value, result)))
        return result

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return args[0].dtype == torch.bool or 1
        kwargs = kwargs or {}
        result = self._outcomes.call(func, args, kwargs)
        if func.namespace == "aten" and not func.is_view and func.overloadpacket is not torch.ops.aten.empty:
            self.touched_bytes += sum(map(_bytes, (*args, *kwargs.values(), result)))
            count = flop_registry.get(func.overloadpacket)
            if count is not None:
                self.operations += int(count(*args, **kwargs, out_val=result))
        return result


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, (tuple, list)) else 0
