"""Putting something around, or instead of, one module's `forward`, and removing it again, in any order.

What a technique changes beside the forward (a layer's attention processor, how a convolution pads) is an attribute that
`replace_attribute` changes and restores; both give a handle with `remove`.

All techniques around a forward are registered in one chain per module. The chain is sorted by `HookOrder`, so the order
in which they are registered does not matter, and removing one leaves the others working. The module's own forward is
looked up at each call: its class may change meanwhile (a layer gets stored), and a deep copy has a chain of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn

CHAIN = "_hook_chain"


class HookOrder(IntEnum):
    """Where in the chain a hook belongs; higher is further outside."""

    COMPILED = -2  # the module's own forward, compiled: it does not call what is inside
    PART = -1  # computes for parts of its input, one after the other or as a batch: attention in tiles
    ADAPTER = 0  # changes a layer's input or adds to its output: hypernetworks, factors in training
    COMPUTE = 1  # computes the same in another way: split feed-forward
    RECOMPUTE = 2  # runs what lies inside again in the backward pass: gradient checkpointing
    OBSERVE = 3  # measures, or notes the beginning and the end of a pass


class ModuleHook(Protocol):
    """A call around, or instead of, a module's forward. An attribute `computes`, which hooks of the order COMPUTE may
    have, is equal in those that compute alike."""

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `inner` with the arguments, or compute its result otherwise."""


@dataclass
class HookHandle:
    """One hook of a module; `remove` takes it out of the chain. Safe to call twice."""

    module: nn.Module
    hook: ModuleHook
    order: HookOrder

    def remove(self) -> None:
        """After the last hook is removed the module's forward is its own again."""
        hook_chain: _HookChain | None = self.module.__dict__.get(CHAIN)
        if hook_chain is None:
            return
        hook_chain.handles = [handle for handle in hook_chain.handles if handle is not self]
        if not hook_chain.handles:
            del self.module.__dict__[CHAIN]
            if hook_chain.before is None:
                self.module.__dict__.pop("forward", None)
            else:
                self.module.__dict__["forward"] = hook_chain.before


def register_hook(module: nn.Module, hook: ModuleHook, order: HookOrder) -> HookHandle:
    """Register `hook`: inside of the hooks of a higher order, outside of those of its own."""
    hook_chain: _HookChain | None = module.__dict__.get(CHAIN)
    if hook_chain is None:
        hook_chain = _HookChain(module, module.__dict__.get("forward"))
        module.__dict__[CHAIN] = hook_chain
        module.__dict__["forward"] = hook_chain
    handle = HookHandle(module, hook, order)
    hook_chain.handles = sorted([*hook_chain.handles, handle], key=lambda each: each.order)
    return handle


@dataclass
class AttributeHandle:
    """An attribute that was replaced; `remove` puts back what was there. Safe to call twice; handles of one attribute
    are removed in the opposite order."""

    holder: Any
    name: str
    before: Any
    _is_removed: bool = False

    def remove(self) -> None:
        """The attribute is the same object as before."""
        if not self._is_removed:
            self._is_removed = True
            setattr(self.holder, self.name, self.before)


def replace_attribute(holder: Any, name: str, value: Any) -> AttributeHandle:
    """Set an attribute that `holder` has, until the handle is removed. Raises AttributeError where it has none."""
    handle = AttributeHandle(holder, name, getattr(holder, name))
    setattr(holder, name, value)
    return handle


def hooks_of(module: nn.Module) -> list[HookHandle]:
    """The hooks of this module, innermost first."""
    hook_chain: _HookChain | None = module.__dict__.get(CHAIN)
    return [] if hook_chain is None else list(hook_chain.handles)


def has_foreign_forward(module: nn.Module) -> bool:
    """Whether something else than this chain has replaced the forward of this very module."""
    hook_chain: _HookChain | None = module.__dict__.get(CHAIN)
    return hook_chain.before is not None if hook_chain is not None else "forward" in module.__dict__


@dataclass(eq=False)
class _HookChain:
    """Replaces `forward` on the module. `before` is the forward that somebody else had set."""

    module: nn.Module
    before: Callable[..., Any] | None
    handles: list[HookHandle] = field(default_factory=list)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(len(self.handles), self.handles, args, kwargs)

    def _call(self, height: int, handles: list[HookHandle], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if height == 0:
            return self.__wrapped__(*args, **kwargs)

        def inner(*args: Any, **kwargs: Any) -> Any:
            return self._call(height - 1, handles, args, kwargs)

        return handles[height - 1].hook(self.module, inner, *args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The forward inside of all hooks; `inspect.signature` follows it."""
        if self.before is not None:
            return self.before
        own: Callable[..., Any] = type(self.module).forward.__get__(self.module)
        return own
