"""Putting something around, or in place of, one module's `forward`, so that it can be taken away again in any order.

All techniques that do so stand in one pile a module. The pile is sorted by `Layering`, so the order in which they are
applied does not matter, and taking one away leaves the others working. What lies innermost is looked up at each call:
the module's class may change meanwhile (a layer gets stored), and a deep copy of the module has a pile of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from torch import nn

PILE = "_forward_pile"


class Layering(IntEnum):
    """Where in the pile something belongs; higher is further outside."""

    COMPUTE = 0  # computes the same in another way: split feed-forward
    WEIGHTS = 1  # makes weights usable while the forward pass runs: decoding together, streaming
    RECOMPUTE = 2  # runs what lies inside again in the backward pass: gradient checkpointing
    OBSERVE = 3  # measures, or notes the beginning and the end of a pass


class Around(Protocol):
    """What is put around a forward."""

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `inner` with the arguments, or compute its result otherwise."""


@dataclass
class Patch:
    """One thing in a module's pile; `remove` takes it away. Safe to call twice."""

    module: nn.Module
    around: Around
    layering: Layering

    def remove(self) -> None:
        """The module's forward is its own again when the last patch is gone."""
        pile: _Pile | None = self.module.__dict__.get(PILE)
        if pile is None:
            return
        pile.patches = [patch for patch in pile.patches if patch is not self]
        if not pile.patches:
            del self.module.__dict__[PILE]
            if pile.before is None:
                self.module.__dict__.pop("forward", None)
            else:
                self.module.__dict__["forward"] = pile.before


def put_around(module: nn.Module, around: Around, layering: Layering) -> Patch:
    """Put `around` onto the module's pile: inside of everything that is further outside, outside of its equals."""
    pile: _Pile | None = module.__dict__.get(PILE)
    if pile is None:
        pile = _Pile(module, module.__dict__.get("forward"))
        module.__dict__[PILE] = pile
        module.__dict__["forward"] = pile
    patch = Patch(module, around, layering)
    pile.patches = sorted([*pile.patches, patch], key=lambda each: each.layering)
    return patch


def patches_of(module: nn.Module) -> list[Patch]:
    """What lies around this module's forward, innermost first."""
    pile: _Pile | None = module.__dict__.get(PILE)
    return [] if pile is None else list(pile.patches)


def has_foreign_forward(module: nn.Module) -> bool:
    """Whether somebody else has put a forward of theirs onto this very module."""
    pile: _Pile | None = module.__dict__.get(PILE)
    return pile.before is not None if pile is not None else "forward" in module.__dict__


@dataclass(eq=False)
class _Pile:
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

        return patches[height - 1].around(self.module, inner, *args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The forward below the pile; `inspect.signature` follows it."""
        if self.before is not None:
            return self.before
        own: Callable[..., Any] = type(self.module).forward.__get__(self.module)
        return own
