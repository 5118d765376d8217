"""Groups of rows and columns of weights: what is asked for together is brought together, without the rest of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn

from modules.memory.layer import Part
from modules.memory.streaming.groups import Group, Slot
from modules.memory.streaming.source import PartSource

Parts = tuple[Part, ...]


class PartGroups:
    """Which group brings which parts. Where a parameter is cut in another way than before, only the new cut is kept."""

    def __init__(self) -> None:
        self._known: dict[Parts, Group] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, parts: Parts) -> Group | None:
        """The group that was made for exactly these."""
        return self._known.get(parts)

    def add(self, parts: Parts, wholes: Sequence[Slot]) -> Group:
        """A group of these parts of weights; where those are stored is looked up at each reading."""
        slots = [
            Slot(
                whole.path,
                whole.layer,
                whole.name,
                PartSource(partial(getattr, whole, "source"), part.dimension, part.start, part.stop),
            )
            for part, whole in zip(parts, wholes, strict=True)
        ]
        group = self._known[parts] = Group(0, slots[0].path, slots, is_part=True)
        return group

    def remove_overlapping(self, parts: Parts) -> list[Group]:
        """Forget groups that have values in common with these parts; returns them."""
        return self._remove([known for known in self._known if any(_overlap(a, b) for a in known for b in parts)])

    def remove_of(self, layer: nn.Module, name: str) -> list[Group]:
        """Forget groups with parts of this parameter; returns them."""
        return self._remove([k for k in self._known if any(part.layer is layer and part.name == name for part in k)])

    def remove_all(self) -> list[Group]:
        """Forget all groups; returns them."""
        return self._remove(list(self._known))

    def _remove(self, which: Sequence[Parts]) -> list[Group]:
        return [self._known.pop(parts) for parts in which]


def _overlap(first: Part, second: Part) -> bool:
    """Whether two parts of one parameter have values in common."""
    if first.layer is not second.layer or first.name != second.name:
        return False
    return first.dimension != second.dimension or max(first.start, second.start) < min(first.stop, second.stop)
