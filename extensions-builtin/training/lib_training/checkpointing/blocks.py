"""Which modules of a model are its repeated blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from modules.errors import InvalidValueError

Wanted = Sequence[str] | Sequence[type[nn.Module]] | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class Block:
    """One block: what a strategy and a user's function learn about it.

    Calling it runs the block's forward, below whatever computes it again; `run` is that forward, where one is running.
    """

    module: nn.Module
    name: str  # dotted path from the model
    index: int  # among `count` blocks, in the model's order
    count: int
    run: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The block's output."""
        return (self.run or self.module)(*args, **kwargs)


def find_blocks(model: nn.Module, wanted: Wanted | None = None) -> list[Block]:
    """The blocks of `model`, none inside of another.

    By themselves: members of a ModuleList or Sequential whose members are of one class, which occurs more than once in
    the model's lists and has layers of its own; the outermost such lists count, so that a UNet gives its residual and
    attention blocks, a transformer its layers. `wanted` names them instead: full paths, classes, or a function of path
    and module. Raises `InvalidValueError` where nothing is found.
    """
    found = _wanted(model, wanted) if wanted is not None else _repeated(model)
    if not found:
        raise InvalidValueError(
            f"{type(model).__name__} has no repeated blocks that could be computed again. "
            "Name them: blocks=(a class, ...) or the paths of modules."
            if wanted is None
            else f"{type(model).__name__} has none of the blocks that were named: {_shown(wanted)}."
        )
    return [Block(module, name, index, len(found)) for index, (name, module) in enumerate(found.items())]


def _shown(wanted: Wanted) -> str:
    if callable(wanted):
        return "the function is true for no module"
    return ", ".join(item if isinstance(item, str) else item.__name__ for item in wanted)


def _repeated(model: nn.Module) -> dict[str, nn.Module]:
    lists = [module for module in model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    classes = Counter(type(member) for each in lists if _is_uniform(each) for member in each)
    return _outermost(model, lambda parent, child: _is_uniform(parent) and classes[type(child)] > 1)


def _is_uniform(module: nn.Module | None) -> bool:
    """Whether it lists blocks of one class, each with layers inside."""
    if not isinstance(module, (nn.ModuleList, nn.Sequential)) or not len(module):
        return False
    members = list(module)
    return len({type(member) for member in members}) == 1 and all(
        any(True for _ in member.children()) and any(True for _ in member.parameters()) for member in members
    )


def _wanted(model: nn.Module, wanted: Wanted) -> dict[str, nn.Module]:
    if callable(wanted):
        return _outermost_of({name: module for name, module in model.named_modules() if name and wanted(name, module)})
    items: list[Any] = list(wanted)
    modules = dict(model.named_modules())
    unknown = [item for item in items if isinstance(item, str) and item not in modules]
    if unknown:
        raise InvalidValueError(f"{type(model).__name__} has no module called {', '.join(unknown)}.")
    classes = tuple(item for item in items if isinstance(item, type))
    return _outermost_of(
        {name: module for name, module in modules.items() if name in items or (classes and isinstance(module, classes))}
    )


def _outermost_of(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Without those that lie inside of another one."""
    return {
        name: module
        for name, module in modules.items()
        if not any(name.startswith(f"{other}.") for other in modules if other != name)
    }


def _outermost(model: nn.Module, is_block: Callable[[nn.Module, nn.Module], bool]) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()

    def search(path: str, parent: nn.Module) -> None:
        for name, child in parent.named_children():
            if id(child) in seen:
                continue
            seen.add(id(child))
            inside = f"{path}.{name}" if path else name
            if is_block(parent, child):
                found[inside] = child
            else:
                search(inside, child)

    search("", model)
    return found
