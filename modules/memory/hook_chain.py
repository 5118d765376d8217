"""Putting something around, or in place of, one module's `forward`, so that it can be taken away again in any order.

All techniques that do so stand in one pile a module. The pile is sorted by `HookOrder`, so the order in which they are
applied does not matter, and taking one away leaves the others working. What lies innermost is looked up at each call:
the module's class may change meanwhile (a layer gets stored), and a deep copy of the module has a pile of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from torch import nn

CHAIN = "_forward_pile"


class HookOrder(IntEnum):
    """Where in the pile something belongs; higher is further outside."""

    ADAPTER = 0  # changes a layer's input or adds to its output: hypernetworks, factors in training
    COMPUTE = 1  # computes the same in another way: split feed-forward
    WEIGHTS = 2  # makes weights usable while the forward pass runs: decoding together, streaming
    RECOMPUTE = 3  # runs what lies inside again in the backward pass: gradient checkpointing
    OBSERVE = 4  # measures, or notes the beginning and the end of a pass


class ModuleHook(Protocol):
    """What is registered a forward."""

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `inner` with the arguments, or compute its result otherwise."""


@dataclass
class Patch:
    """One thing in a module's pile; `remove` takes it away. Safe to call twice."""

    module: nn.Module
    hook: ModuleHook
    order: HookOrder

    def remove(self) -> None:
        """The module's forward is its own again when the last patch is missing."""
        hook_chain: _HookChain | None = self.module.__dict__.get(CHAIN)
        if hook_chain is None:
            return
        hook_chain.patches = [patch for patch in hook_chain.patches if patch is not self]
        if not hook_chain.patches:
            del self.module.__dict__[CHAIN]
            if hook_chain.before is None:
                self.module.__dict__.pop("forward", None)
            else:
                self.module.__dict__["forward"] = hook_chain.before


def register_hook(module: nn.Module, hook: ModuleHook, order: HookOrder) -> Patch:
    """Put `around` onto the module's pile: inside of everything that is further outside, outside of its equals."""
    hook_chain: _HookChain | None = module.__dict__.get(CHAIN)
    if hook_chain is None:
        hook_chain = _HookChain(module, module.__dict__.get("forward"))
        module.__dict__[CHAIN] = hook_chain
        module.__dict__["forward"] = hook_chain
    patch = Patch(module, hook, order)
    hook_chain.patches = sorted([*hook_chain.patches, patch], key=lambda each: each.order)
    return patch


def patches_of(module: nn.Module) -> list[Patch]:
    """What lies around this module's forward, innermost first."""
    hook_chain: _HookChain | None = module.__dict__.get(CHAIN)
    return [] if hook_chain is None else list(hook_chain.patches)


def has_foreign_forward(module: nn.Module) -> bool:
    """Whether somebody else has put a forward of theirs onto this very module."""
    hook_chain: _HookChain | None = module.__dict__.get(CHAIN)
    return hook_chain.before is not None if hook_chain is not None else "forward" in module.__dict__


@dataclass(eq=False)
class _HookChain:
    """Stands as `forward` on the module. `before` is the forward that somebody else had put there."""

    module: nn.Module
    before: Callable[..., Any] | None
    patches: list[Patch] = field(default_factory=list)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(len(self.patches), self.patches, args, kwargs)

    def _call(self, height: int, patches: list[Patch], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if height == 0:
            return self.__wrapped__(*args, **kwargs)

        def inner(*args: Any, **kwargs: Any) -> Any:
            return self._call(height - 1, patches, args, kwargs)

        return patches[height - 1].hook(self.module, inner, *args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The forward below the pile; `inspect.signature` follows it."""
        if self.before is not None:
            return self.before
        own: Callable[..., Any] = type(self.module).forward.__get__(self.module)
        return own
