"""Making all feed-forwards below a module compute in slices, and back again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from modules.memory.feed_forward.computing import compute
from modules.memory.feed_forward.options import SplitOptions
from modules.memory.feed_forward.pattern import FeedForward, find_feed_forward
from modules.memory.hook_chain import HookHandle, HookOrder, register_hook


@dataclass
class SplitHandle:
    """The feed-forwards that `split_feed_forward` found, by path, and the way back."""

    root: nn.Module
    found: dict[str, FeedForward]
    options: SplitOptions
    hooks: list[HookHandle] = field(default_factory=list)

    def remove(self) -> None:
        """Every feed-forward computes as before. Safe to call twice; what others registered them stays."""
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    def __enter__(self) -> SplitHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def split_feed_forward(root: nn.Module, options: SplitOptions) -> SplitHandle:
    """Compute every feed-forward below `root` (or root itself) in slices by `options`; the handle undoes it.

    Weights stay where and what they are: slices are views, or only the slice in use is decoded. Branches and changes
    of stored layers count as ever. With gradients on, each piece is computed again in the backward pass. A call that
    is no plain call with one tensor, or whose layers somebody listens to (hooks), is computed whole. Applied again, the
    newest options hold until their handle is removed; what they leave whole is for the older ones to cut.
    """
    handle = SplitHandle(root, find_feed_forwards(root), options)
    for path, pattern in handle.found.items():
        module = root.get_submodule(path)
        handle.hooks.append(register_hook(module, _Split(pattern, options), HookOrder.COMPUTE))
    return handle


def find_feed_forwards(root: nn.Module) -> dict[str, FeedForward]:
    """All feed-forwards below `root` by path, none inside of another. A shared one is found once."""
    found: dict[str, FeedForward] = {}
    seen: set[int] = set()

    def search(path: str, module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        pattern = find_feed_forward(module)
        if pattern is not None:
            found[path] = pattern
            return
        for name, child in module.named_children():
            search(f"{path}.{name}" if path else name, child)

    search("", root)
    return found


@dataclass(frozen=True)
class _Split:
    """Replaces the forward of a feed-forward."""

    pattern: FeedForward
    options: SplitOptions

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if len(given) != 1 or not isinstance(given[0], Tensor) or not given[0].is_floating_point():
            return inner(*args, **kwargs)
        output = compute(self.pattern, self.options, module, given[0])
        return inner(*args, **kwargs) if output is None else output
