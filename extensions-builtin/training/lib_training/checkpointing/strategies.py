"""Which blocks are computed again in the backward pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from lib_training.checkpointing.blocks import Block
from modules.errors import InvalidValueError

Chosen = frozenset[int]
Function = Callable[..., Any]
UNITS = {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


@runtime_checkable
class Strategy(Protocol):
    """Chooses blocks before anything has run."""

    def choose(self, blocks: Sequence[Block]) -> Chosen:
        """Indices of the blocks that are computed again. Raises `InvalidValueError` for blocks that are not there."""


@dataclass(frozen=True)
class Every:
    """Every `n`-th block, from the first on; `inverted`: every block but those. `Every()` is every block."""

    n: int = 1
    inverted: bool = False

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidValueError(f"Every {self.n}th block is none. Give 1 or more.")

    def choose(self, blocks: Sequence[Block]) -> Chosen:
        """See `Strategy`."""
        return frozenset(block.index for block in blocks if (block.index % self.n == 0) != self.inverted)


@dataclass(frozen=True)
class Listed:
    """These blocks, by index (negative ones count from the end) or by name; `inverted`: all but these."""

    blocks: Collection[int | str]
    inverted: bool = False

    def choose(self, blocks: Sequence[Block]) -> Chosen:
        """See `Strategy`."""
        names = {block.name: block.index for block in blocks}
        count = len(blocks)
        chosen = set()
        for item in self.blocks:
            index = names.get(item) if isinstance(item, str) else item + count if item < 0 else item
            if index is None or not 0 <= index < count:
                known = f"0 to {count - 1}, or names as {blocks[0].name!r}"
                raise InvalidValueError(f"There is no block {item!r}. Blocks are {known}.")
            chosen.add(index)
        return frozenset(range(count)) - chosen if self.inverted else frozenset(chosen)


@dataclass(frozen=True)
class Custom:
    """The user's function runs each block: `function(block, *args, **kwargs)`, `block` a `Block` that can be called.

    It may compute the block at once, by torch's checkpoint, by another library's, or as it likes. What it returns is
    the block's output. Called only while gradients are on.
    """

    function: Function

    def choose(self, blocks: Sequence[Block]) -> Chosen:
        """All: the function decides."""
        return frozenset(range(len(blocks)))


@dataclass(frozen=True)
class ByBudget:
    """Strategy of as few seconds of computing again as possible, so that what waits for the backward pass fits
    `budget_bytes`.

    Counted are the inputs of blocks that are computed again, the activations of those that are not, and, while a
    block is computed again, its own; not the model's parameters and gradients. The first pass with inputs of new
    shapes measures every block (it runs each twice more) and is itself computed with all blocks again. Raises
    `InvalidValueError` then, if not even that fits.
    """

    budget_bytes: int

    def __post_init__(self) -> None:
        if self.budget_bytes < 1:
            raise InvalidValueError(f"A budget of {self.budget_bytes} bytes is none. Give a positive number.")

    def choose(self, blocks: Sequence[Block]) -> Chosen:
        """All, until they are measured."""
        return frozenset(range(len(blocks)))


def strategy_of(text: str) -> Strategy:
    """A strategy as it is written on a command line: "all", "every 2", "all but every 3", "blocks 0, 5, -1", "all but
    blocks mid_block.attentions.0", "1.5 GB", "800 MB".

    Raises `InvalidValueError` that shows the forms.
    """
    words = text.strip().lower()
    listed = re.fullmatch(r"(all but )?blocks? (.+)", text.strip(), re.IGNORECASE)
    if listed:
        items = re.split(r"[\s,]+", listed[2].strip(" ,"))
        blocks = [int(item) if re.fullmatch(r"-?\d+", item) else item for item in items]
        return Listed(blocks, inverted=listed[1] is not None)
    if words in ("all", "every"):
        return Every()
    every = re.fullmatch(r"(all but )?every (\d+)(?:st|nd|rd|th)?(?: block)?", words)
    if every and int(every[2]) > 0:
        return Every(int(every[2]), inverted=every[1] is not None)
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?(kb|mb|gb)", words)
    if size and float(size[1]) > 0:
        return ByBudget(int(float(size[1]) * UNITS[size[2]]))
    raise InvalidValueError(
        f"{text!r} is no way of checkpointing. Known: 'all', 'every 2', 'all but every 3', 'blocks 0, 5, -1' (by "
        "number or name), 'all but blocks 0', or a budget as '1.5 GB'."
    )
