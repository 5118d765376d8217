"""Key maps of transformers as tables of layers: what a layer is called in the original layout, and which layers of ours
its rows are. One table is read in both directions, and sizes follow from the tensors.

For families whose converter in diffusers takes one width for granted; see `names/row_map` for the others.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from modules.models.files.eight_bits import LEFT_OVER, SCALE_NAMES
from modules.models.names.folder_layout import Header, Names
from modules.models.names.row_map import ParameterMap, RowMap, Rows, Source

NUMBER = re.compile(r"\.(\d+)\.")
PLACE = "{}"
LISTS = ("blocks", "layers", "norms", "blocks.image", "blocks.image_cond")
"""Ends of the names of what has numbers."""


@dataclass(frozen=True)
class Layer:
    """A layer of the original layout; `{}` in names is the number of a block.

    `ours`: one layer, or those that its rows are, in this order. `unequal`: all but the last have as many rows as the
    model is wide. `swapped`: the second half of its rows comes first in ours. `weight` is what its weight is called
    where it is not "weight".
    """

    original: str
    ours: tuple[str, ...]
    unequal: bool = False
    swapped: bool = False
    weight: str = "weight"

    def parts(self, height: int, width: int) -> list[Rows | None]:
        """The rows of each part in a tensor of so many rows; None: all of them in order."""
        if self.swapped:
            return [((height // 2, height), (0, height // 2))]
        if len(self.ours) == 1:
            return [None]
        heights = [height // len(self.ours)] * len(self.ours)
        if self.unequal:
            heights = [width] * (len(self.ours) - 1)
            heights.append(height - sum(heights))
        begins = [sum(heights[:number]) for number in range(len(heights))]
        return [((begin, begin + rows),) for begin, rows in zip(begins, heights, strict=True)]


class LayerTable:
    """The layers of a transformer."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self._layers = tuple(layers)
        self._by_original = {layer.original: layer for layer in self._layers}
        self._by_ours = {ours: (layer, part) for layer in self._layers for part, ours in enumerate(layer.ours)}

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All of them, for a table with more."""
        return self._layers

    def row_map(self, header: Header, prefix: str, width: int) -> RowMap:
        """Return the row map of the tensors of a header behind `prefix`, whether fused ones are whole or appear part by
        part."""
        sources: dict[str, Source] = {}
        for name, entry in header.items():
            if not name.startswith(prefix) or name.endswith((*SCALE_NAMES, *LEFT_OVER)):
                continue
            source = Source.of(name)
            template, number = _template(source.key.removeprefix(prefix))
            module, _, leaf = template.rpartition(".")
            layer = self._by_original.get(module)
            if layer is None:
                continue
            ours = "weight" if leaf == layer.weight else leaf
            for part, rows in self._parts(layer, source.rows, entry.shape, width):
                sources[f"{layer.ours[part].replace(PLACE, number)}.{ours}"] = Source(source.key, rows)
        return RowMap(sources)

    @staticmethod
    def _parts(
        layer: Layer, rows: Rows | None, shape: tuple[int, ...], width: int
    ) -> Iterator[tuple[int, Rows | None]]:
        """The parts that a tensor holds, by their numbers; `rows` where it is one of them already."""
        if rows is None:
            yield from enumerate(layer.parts(shape[0] if shape else 1, width))
        elif layer.swapped:
            yield 0, rows
        else:
            begin = rows[0][0]
            height = rows[0][1] - begin
            own = width if layer.unequal else height
            yield (
                (len(layer.ours) - 1 if layer.unequal and begin >= own * (len(layer.ours) - 1) else begin // own),
                rows,
            )

    def folder_names(self, header: Header, prefix: str) -> Names:
        """Return what the tensors of a diffusers folder are called in the original layout."""
        originals: dict[str, str] = {}
        for name, entry in header.items():
            template, number = _template(name)
            module, _, leaf = template.rpartition(".")
            found = self._by_ours.get(module)
            if found is None:
                continue
            layer, part = found
            stem = f"{prefix}{layer.original.replace(PLACE, number)}"
            key = f"{stem}.{layer.weight if leaf == 'weight' else leaf}"
            rows = self._rows_in_folder(header, layer, part, number, leaf, entry.shape)
            originals[name] = Source(key, rows).name
        return ParameterMap(originals), {name: name for name in header}

    @staticmethod
    def _rows_in_folder(
        header: Header, layer: Layer, part: int, number: str, leaf: str, shape: tuple[int, ...]
    ) -> Rows | None:
        height = shape[0] if shape else 1
        if layer.swapped:
            return ((height // 2, height), (0, height // 2))
        if len(layer.ours) == 1:
            return None
        before = [f"{ours.replace(PLACE, number)}.{leaf}" for ours in layer.ours[:part]]
        begin = sum(header[key].shape[0] for key in before if key in header and header[key].shape)
        return ((begin, begin + height),)

    def count(self, names: Mapping[str, object], original: str) -> int:
        """How many blocks there are, told by our names of a layer's weight."""
        stem, _, rest = self._by_original[original].ours[0].partition(PLACE)
        numbers = [int(name[len(stem) :].partition(".")[0]) for name in names if name.startswith(stem) and rest in name]
        return max(numbers, default=-1) + 1


def _template(name: str) -> tuple[str, str]:
    """A name with `{}` for its first number, and the number."""
    match = NUMBER.search(name)
    if match is None or not name[: match.start()].endswith(LISTS):
        return name, ""
    return f"{name[: match.start()]}.{PLACE}.{name[match.end() :]}", match[1]
