"""Where the time of a model's step goes, by torch.profiler and a name for each kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from modules.memory.layer import stored_state

INT8, LINEAR, NORM = "layers in int8", "other linear layers", "norms"
PRODUCT, ATTENTION = "aten::_int_mm", "aten::scaled_dot_product_attention"
LISTED = 12


def kind_of(layer: nn.Module) -> str | None:
    """What a layer counts as; None for what has layers itself, and for what costs nothing worth a name."""
    state = stored_state(layer)
    if state is not None and state.product is not None:
        return INT8
    if isinstance(layer, nn.Linear):
        return LINEAR
    return NORM if "Norm" in type(layer).__name__ and not list(layer.children()) else None


@contextmanager
def named(module: nn.Module) -> Iterator[None]:
    """While open, the profiler sees each layer's call under the name of its kind."""
    with ExitStack() as undo:
        for layer in module.modules():
            if (kind := kind_of(layer)) is None:
                continue
            calls: list[ExitStack] = []

            def enter(_: nn.Module, inputs: Any, calls: list[ExitStack] = calls, kind: str = kind) -> None:
                calls.append(ExitStack())
                calls[-1].enter_context(record_function(kind))

            def leave(_: nn.Module, inputs: Any, output: Any, calls: list[ExitStack] = calls) -> None:
                calls.pop().close()

            undo.callback(layer.register_forward_pre_hook(enter).remove)
            undo.callback(layer.register_forward_hook(leave).remove)
        yield


def shares(module: nn.Module, step: Callable[[], Any]) -> dict[str, Any]:
    """Shares of the time of a step on this thread: of the products in int8, of the rest of such layers (rounding
    inputs, scaling sums, fetching weights), of attention, of other linear layers, of norms, and of all the rest; and
    of the operations of that rest. Attention by a kernel of ours is no operation of PyTorch, and part of the rest."""
    with named(module), profile(activities=[ProfilerActivity.CPU]) as profiled, record_function("step"):
        step()
    totals: dict[str, float] = {}
    rest: dict[str, float] = {}
    for event in profiled.events():
        totals[event.name] = totals.get(event.name, 0.0) + event.cpu_time_total
        above = event
        while above is not None and above.name not in (INT8, LINEAR, NORM, ATTENTION):
            above = above.cpu_parent
        if above is None and event.name != "step":
            rest[event.name] = rest.get(event.name, 0.0) + event.self_cpu_time_total
    whole = totals["step"]
    parts = {name: totals.get(name, 0.0) / whole for name in (PRODUCT, ATTENTION, LINEAR, NORM)}
    parts["around products in int8"] = totals.get(INT8, 0.0) / whole - parts[PRODUCT]
    parts["rest"] = 1 - sum(parts.values())
    largest = sorted(rest, key=lambda name: -rest[name])[:LISTED]
    return {
        "seconds": whole / 1e6,
        "shares": {name: round(part, 3) for name, part in parts.items()},
        "of the rest": {name: round(rest[name] / whole, 3) for name in largest},
    }
