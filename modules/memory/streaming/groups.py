"""Which weights move together: a whole component, a block, or a single layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor, nn

from modules.errors import InvalidValueError
from modules.memory.streaming.source import Source, size_bytes

MAX_BLOCK_BYTES = 96 << 20  # a larger block is halved until two fit next to activations
ALIGNMENT = 64  # bytes: kernels take the same path as for a tensor of its own
PIECE_BYTES = 64 << 20  # large groups move in pieces, so that nothing as large as a group must be contiguous


class Level(StrEnum):
    """How finely a component is streamed."""

    COMPONENT = "component"  # as a whole, when another one has had its turn
    BLOCK = "block"
    LAYER = "layer"


@dataclass(eq=False)
class Slot:
    """One weight of one layer, and where it is stored now. `first` is where it was stored when streaming began;
    `via` is a dtype that it goes through on its way, because it was converted twice."""

    path: str
    layer: nn.Module
    name: str
    source: Source
    first: Source = field(init=False)
    via: torch.dtype | None = None

    def __post_init__(self) -> None:
        self.first = self.source


@dataclass(eq=False)
class Piece:
    """Weights that are contiguous in memory when they are there; `offsets` in bytes."""

    slots: list[Slot]
    offsets: list[int]
    size_bytes: int
    host: Tensor | None = None  # the same row in pinned memory, where it is stored there

    def cut(self, first: int, last: int) -> Piece:
        """The piece of the weights `first` to `last` (not with it), where they are."""
        ends = [*self.offsets, self.size_bytes]
        begin, end = ends[first], ends[last]
        host = None if self.host is None else self.host[begin:end]
        return Piece(self.slots[first:last], [at - begin for at in self.offsets[first:last]], end - begin, host)


@dataclass(eq=False)
class Group:
    """A group of weights that moves together. `alone`: nothing is brought in ahead of it or with it. `is_part`: of rows
    or columns of weights."""

    index: int
    path: str
    slots: list[Slot]
    alone: bool = False
    is_part: bool = False
    component: str = ""
    pieces: list[Piece] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arrange()

    @property
    def size_bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.size_bytes for piece in self.pieces)

    def arrange(self) -> None:
        """Lay the weights out again, in rows of up to `PIECE_BYTES` (a larger weight has its own)."""
        self.pieces = []
        for slot in self.slots:
            count = -(-size_bytes(slot.source) // ALIGNMENT) * ALIGNMENT
            if not self.pieces or self.pieces[-1].size_bytes + count > PIECE_BYTES:
                self.pieces.append(Piece([], [], 0))
            piece = self.pieces[-1]
            piece.slots.append(slot)
            piece.offsets.append(piece.size_bytes)
            piece.size_bytes += count

    def take_out(self, slot: Slot) -> Group:
        """A group of this weight alone, which is in this one no longer. What is in pinned memory stays there."""
        piece = next(piece for piece in self.pieces if slot in piece.slots)
        at, where = piece.slots.index(slot), self.pieces.index(piece)
        hook = [piece.cut(0, at), piece.cut(at + 1, len(piece.slots))]
        self.pieces[where : where + 1] = [rest for rest in hook if rest.slots]
        self.slots.remove(slot)
        alone = Group(self.index, slot.path, [slot], component=self.component)
        alone.pieces = [piece.cut(at, at + 1)]
        return alone


Offloading = Mapping[tuple[int, str], Source]


def make_groups(
    components: Mapping[str, nn.Module],
    sources: Offloading,
    levels: Mapping[str, Level],
    blocks_per_group: int = 1,
    max_block_bytes: int | None = None,
) -> list[Group]:
    """Groups of all weights below `components` that have a source (by id of the layer, and name).

    A block is an element of a ModuleList or Sequential, the outermost ones; `blocks_per_group` neighbours share a
    group. With `max_block_bytes` a larger one is taken apart, into the blocks and layers in it. What is
    outside of blocks, and a module that is in several, moves layer by layer. Raises `InvalidValueError` for
    numbers below 1.
    """
    if blocks_per_group < 1 or (max_block_bytes is not None and max_block_bytes < 1):
        raise InvalidValueError(
            f"Blocks in a group ({blocks_per_group}) and bytes of a block ({max_block_bytes}) must be 1 or more."
        )
    groups: list[Group] = []
    for name, root in components.items():
        level = levels[name]
        if level is Level.COMPONENT:
            parts: list[tuple[str, list[nn.Module]]] = [(name, list(root.modules()))]
        elif level is Level.BLOCK:
            parts = list(_in_blocks(name, root, sources, blocks_per_group, max_block_bytes))
        else:
            parts = [(_joined(name, path), [layer]) for path, layer in root.named_modules()]
        paths = {id(layer): _joined(name, path) for path, layer in root.named_modules()}
        for path, layers in parts:
            slots = [slot for layer in layers for slot in _slots(paths[id(layer)], layer, sources)]
            if slots:
                groups.append(Group(len(groups), path, slots, alone=level is Level.COMPONENT, component=name))
    return groups


def room_ahead(groups: Sequence[Group]) -> dict[str, int]:
    """Return by component how many bytes may come ahead of their use: as many as the largest group has, without tables
    of embeddings, which are looked up once."""
    room: dict[str, int] = {}
    for group in groups:
        is_table = any(isinstance(slot.layer, nn.Embedding) for slot in group.slots)
        size = 0 if group.alone or is_table else group.size_bytes
        room[group.component] = max(room.get(group.component, 0), size)
    return room


def most_at_once(sizes: Sequence[int], room_bytes: int) -> int:
    """Return the most bytes that a group takes with those that come ahead of their use; one follows the other, and the
    first the last."""
    most = 0
    for at, size in enumerate(sizes):
        left = room_bytes
        for following in (*sizes[at + 1 :], *sizes[:at]):
            if following > left:
                break
            left -= following
        most = max(most, size + room_bytes - left)
    return most


def regrouped(
    groups: Sequence[Group], name: str, root: nn.Module, level: Level, max_block_bytes: int | None = None
) -> list[Group]:
    """`groups` with those of the component `root` cut again, at `level`; of the very same slots."""
    inside = {id(layer) for layer in root.modules()}
    others = [group for group in groups if id(group.slots[0].layer) not in inside]
    known = {(id(slot.layer), slot.name): slot for group in groups for slot in group.slots}
    sources = {key: slot.source for key, slot in known.items()}
    made = make_groups({name: root}, sources, {name: level}, max_block_bytes=max_block_bytes)
    for group in made:
        group.slots = [known[id(slot.layer), slot.name] for slot in group.slots]
        group.arrange()
    return [*others, *made]


def _slots(path: str, layer: nn.Module, sources: Offloading) -> Iterator[Slot]:
    for name in layer._parameters:
        source = sources.get((id(layer), name))
        if source is not None:
            yield Slot(path, layer, name, source)


def _in_blocks(
    name: str, root: nn.Module, sources: Offloading, blocks_per_group: int, largest: int | None
) -> Iterator[tuple[str, list[nn.Module]]]:
    def size(module: nn.Module) -> int:
        return sum(size_bytes(slot.source) for layer in module.modules() for slot in _slots("", layer, sources))

    blocks = list(_blocks(root, lambda block: largest is None or size(block) <= largest))
    seen: dict[int, int] = {}
    for block in blocks:
        for layer in block.modules():
            seen[id(layer)] = seen.get(id(layer), 0) + 1
    paths = {id(module): _joined(name, path) for path, module in root.named_modules()}
    for begin in range(0, len(blocks), blocks_per_group):
        together = blocks[begin : begin + blocks_per_group]
        layers = _distinct(layer for block in together for layer in block.modules() if seen[id(layer)] == 1)
        yield paths[id(together[0])], layers
    for layer in root.modules():
        if seen.get(id(layer), 0) != 1:
            yield paths[id(layer)], [layer]


def _blocks(module: nn.Module, is_small: Callable[[nn.Module], bool]) -> Iterator[nn.Module]:
    """The outermost elements of containers that are small enough."""
    for child in module.children():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and is_small(child):
            yield child
        else:
            yield from _blocks(child, is_small)


def _distinct(layers: Iterable[nn.Module]) -> list[nn.Module]:
    return list({id(layer): layer for layer in layers}.values())


def _joined(name: str, path: str) -> str:
    return ".".join(part for part in (name, path) if part)
