"""Turning gradient checkpointing on for a model, and off again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from lib_training.checkpointing.blocks import Block, Wanted, find_blocks
from lib_training.checkpointing.keeping import ActivationOffloader, Disk, MainMemory, Place
from lib_training.checkpointing.measuring import Measurement
from lib_training.checkpointing.solving import Cost, solve
from lib_training.checkpointing.strategies import ByBudget, Chosen, Custom, Strategy, strategy_of
from modules.errors import InvalidValueError
from modules.memory.hook_chain import HookHandle, HookOrder, register_hook

HANDLE = "_checkpoint_handle"
_LOCAL = threading.local()

Signature = tuple[Any, ...]


@dataclass(eq=False)
class CheckpointHandle:
    """Handle on what is computed again, and the way back. `chosen` are the blocks' indices; under a budget those of the
    pass that ran last, and `costs` what was measured, by index, in the order in which blocks run."""

    model: nn.Module
    blocks: tuple[Block, ...]
    strategy: Strategy
    chosen: Chosen
    place: Place | None = None
    costs: dict[int, Cost] = field(default_factory=dict)
    _offloader: ActivationOffloader | None = None
    _hooks: list[HookHandle] = field(default_factory=list)
    _plans: dict[Signature, Chosen] = field(default_factory=dict)

    def remove(self) -> None:
        """Every block computes as before. Safe to call twice; a backward pass that is still to come works."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self.model.__dict__.get(HANDLE) is self:
            del self.model.__dict__[HANDLE]

    def close(self) -> None:
        """`remove`, and what was offloaded is thrown away: for when no backward pass is to come."""
        self.remove()
        if self.place is not None:
            self.place.close()

    def __enter__(self) -> CheckpointHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def enable_gradient_checkpointing(
    model: nn.Module,
    strategy: Strategy | str | Callable[..., Any] = "all",
    *,
    blocks: Wanted | None = None,
    offload: str | Path | Place | None = None,
) -> CheckpointHandle:
    """Compute blocks of `model` again in the backward pass, by `strategy`; the handle undoes it.

    `strategy`: one of `strategies`, its text ("every 2", "1.5 GB"), or a function for `Custom`. `blocks`: see
    `find_blocks`. `offload` says where the inputs of such blocks wait: "ram" (pinned, with a GPU), a
    folder for the disk, or a `Place`; None: where they are.

    Outputs, gradients and `state_dict` are those without; dropout draws the same numbers again. In effect only while
    gradients are on. Enabled again, it reconfigures. Raises `InvalidValueError`.
    """
    strategy = _strategy(strategy)
    found = tuple(find_blocks(model, blocks))
    chosen = strategy.choose(found)
    place = _place(offload)
    known: CheckpointHandle | None = model.__dict__.get(HANDLE)
    if known is not None:
        known.remove()
    handle = CheckpointHandle(
        model, found, strategy, chosen, place, _offloader=None if place is None else ActivationOffloader(place)
    )
    for block in found:
        handle._hooks.append(register_hook(block.module, _ModuleHook(handle, block), HookOrder.RECOMPUTE))
    if isinstance(strategy, ByBudget):
        handle._hooks.append(register_hook(model, _Pass(handle, strategy), HookOrder.OBSERVE))
    model.__dict__[HANDLE] = handle
    return handle


def _strategy(wanted: Strategy | str | Callable[..., Any]) -> Strategy:
    if isinstance(wanted, str):
        return strategy_of(wanted)
    if isinstance(wanted, Strategy):
        return wanted
    return Custom(wanted)


def _place(offload: str | Path | Place | None) -> Place | None:
    if offload is None:
        return None
    if offload == "ram":
        return MainMemory()
    if isinstance(offload, Path):
        return Disk(offload)
    if isinstance(offload, str):
        raise InvalidValueError(f"offload is {offload!r}. Allowed: 'ram', or the path of a folder (pathlib.Path).")
    return offload


@dataclass
class _Running:
    """A pass that is running in this thread."""

    handle: CheckpointHandle
    chosen: Chosen
    measurement: Measurement | None


@dataclass(eq=False)
class _Pass:
    """Around the model, under a budget: knows when a pass begins and ends, and which plan is for its shapes."""

    handle: CheckpointHandle
    strategy: ByBudget

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        handle = self.handle
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return inner(*args, **kwargs)
        signature = (module.training, *(_shape(leaf) for leaf in tree_flatten((args, kwargs))[0]))
        plan = handle._plans.get(signature)
        everything = frozenset(range(len(handle.blocks)))
        measurement = Measurement(module) if plan is None else None
        running = _Running(handle, everything if plan is None else plan, measurement)
        before = _LOCAL.__dict__.get("running")
        _LOCAL.running = running
        try:
            output = inner(*args, **kwargs)
        finally:
            _LOCAL.running = before
        handle.chosen = running.chosen
        if measurement is not None:
            handle.costs = measurement.costs
            order = list(measurement.costs)
            again = {order[i] for i in solve(list(measurement.costs.values()), self.strategy.budget_bytes)}
            handle._plans[signature] = frozenset(again | (everything - set(order)))  # what did not run is unknown
        return output


@dataclass(eq=False)
class _ModuleHook:
    """Around one block."""

    handle: CheckpointHandle
    block: Block

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        handle = self.handle
        if not torch.is_grad_enabled():
            return inner(*args, **kwargs)
        if isinstance(handle.strategy, Custom):
            return handle.strategy.function(replace(self.block, run=inner), *args, **kwargs)
        running: _Running | None = None if torch.compiler.is_compiling() else _LOCAL.__dict__.get("running")
        chosen = handle.chosen
        if running is not None and running.handle is handle:
            chosen = running.chosen
            if running.measurement is not None:
                tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
                running.measurement.measure(self.block.index, module, lambda: inner(*args, **kwargs), tensors)
        if self.block.index not in chosen:
            return inner(*args, **kwargs)
        return compute_again(inner, args, kwargs, handle._offloader)


def compute_again(
    run: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], offloader: ActivationOffloader | None = None
) -> Any:
    """`run(*args, **kwargs)`, of which only the tensors among the arguments are kept, by `keeper` if there is one."""
    leaves, shape = tree_flatten((tuple(args), kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[i] for i in places]
    for i in places:
        leaves[i] = None

    def from_tensors(*tensors: Tensor) -> Any:
        whole = list(leaves)
        for i, tensor in zip(places, tensors, strict=True):
            whole[i] = tensor
        args, kwargs = tree_unflatten(whole, shape)
        return run(*args, **kwargs)

    with nullcontext() if offloader is None else offloader.keeping(tensors):
        return checkpoint(from_tensors, *tensors, use_reentrant=False, preserve_rng_state=True)


def _shape(leaf: Any) -> Any:
    """Return what of an argument decides on memory."""
    return (tuple(leaf.shape), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else type(leaf)
