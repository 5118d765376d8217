"""Key maps that are derived: a converter of diffusers is run on addresses of rows instead of weights.

Each tensor of the file becomes int64 addresses `number << 32 | row` of shape [rows, 1, ...]. What the converter makes
of them says of every parameter which rows of which tensors it is: where a converter splits, joins or reorders rows, the
addresses move along, and no weight is read.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.models.names.keymap import KeyMap

Shape = tuple[int, ...]
Convert = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]
"""A converter of `diffusers.loaders.single_file_utils`, which may remove the tensors from the table it is given."""
Rows = tuple[tuple[int, int], ...]
"""Runs of rows, from and up to, in this order."""

ROW_BITS = 32
PROBED_ROWS = 12  # of a tensor that is not there: divisible by two, three and four
PART = re.compile(r"^(.+)\.rows((?:_\d+_\d+)+)(\.[^.]+)$")


@dataclass(frozen=True)
class Source:
    """Which tensor of the file a parameter is, or which `rows` of it; None: all of them, in their order."""

    key: str
    rows: Rows | None = None

    @property
    def name(self) -> str:
        """Return the name where the parts of fused tensors appear one by one: the rows are before the last part of the
        key, so that `qkv.rows_0_64.weight` and `qkv.rows_0_64.bias` belong together."""
        if self.rows is None:
            return self.key
        head, _, leaf = self.key.rpartition(".")
        return f"{head}.rows{''.join(f'_{begin}_{end}' for begin, end in self.rows)}.{leaf}"

    @classmethod
    def of(cls, name: str) -> "Source":
        """The inverse of `name`."""
        match = PART.match(name)
        if match is None:
            return cls(name)
        numbers = [int(number) for number in match[2][1:].split("_")]
        return cls(f"{match[1]}{match[3]}", tuple(zip(numbers[::2], numbers[1::2], strict=True)))


@dataclass(frozen=True)
class RowMap:
    """The sources of parameters, by our names. `missing` are tensors that the converter looked for in vain; what it
    made of them is in the map too, so that loading can name them."""

    sources: Mapping[str, Source]
    missing: tuple[str, ...] = ()

    def by_key(self) -> dict[str, list[Source]]:
        """The parts of each tensor of the file."""
        found: dict[str, list[Source]] = {}
        for source in self.sources.values():
            found.setdefault(source.key, []).append(source)
        return found

    def keymap(self) -> KeyMap:
        """Between the names of the sources and ours."""
        return ParameterMap({ours: source.name for ours, source in self.sources.items()})


class ParameterMap(KeyMap):
    """A key map that is given parameter by parameter, by our names. `tables`: how many rows those parameters have that
    are one vector [rows * width] in the file and [rows,width] here."""

    def __init__(self, originals: Mapping[str, str], tables: Mapping[str, int] | None = None) -> None:
        super().__init__(())
        self._originals = dict(originals)
        self._tables = dict(tables or {})
        self._ours = {original: ours for ours, original in originals.items()}

    def to_ours(self, key: str) -> str | None:
        """See `KeyMap`."""
        return self._ours.get(key)

    def to_original(self, key: str) -> str | None:
        """See `KeyMap`."""
        return self._originals.get(key)

    def tensor_to_ours(self, key: str, tensor: Tensor) -> Tensor:
        """See `KeyMap`."""
        return tensor.reshape(self.shape_to_ours(key, tuple(tensor.shape))) if self._rows(key) else tensor

    def tensor_to_original(self, key: str, tensor: Tensor) -> Tensor:
        """See `KeyMap`."""
        return tensor.flatten() if key in self._tables else tensor

    def shape_to_ours(self, key: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `KeyMap`."""
        rows = self._rows(key)
        return (rows, shape[0] // rows) if rows and len(shape) == 1 and shape[0] % rows == 0 else shape

    def _rows(self, key: str) -> int:
        return self._tables.get(self._ours.get(key, ""), 0)


class _Addresses(dict[str, Tensor]):
    """The tensors as a converter is given them; one that is not there is made up when it is asked for."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self.keys_by_number = list(shapes)
        self.made_up: list[str] = []
        super().__init__((key, _addresses(number, shape)) for number, (key, shape) in enumerate(shapes.items()))

    def __missing__(self, key: str) -> Tensor:
        self.made_up.append(key)
        self.keys_by_number.append(key)
        self[key] = _addresses(len(self.keys_by_number) - 1, (PROBED_ROWS, 1))
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        """See `dict`."""
        if key not in self:
            if default:
                return default[0]
            self.__missing__(key)
        return super().pop(key)


def row_map(convert: Convert, shapes: Mapping[str, Shape], prefix: str = "") -> RowMap:
    """The map of a file's tensors, by name without `prefix`, which the names in the map have.

    Raises `CheckpointError` where the names are so incomplete that the converter cannot tell the model's depth.
    """
    addresses = _Addresses(shapes)
    try:
        converted = convert(addresses)
    except (LookupError, ValueError, TypeError, RuntimeError) as error:
        what = error if isinstance(error, KeyError) else "one of its tensors"
        raise CheckpointError(f"its transformer is not whole: {what} is missing or of another shape.") from error
    counts = {key: shape[0] if shape else 1 for key, shape in shapes.items()}
    sources = {}
    for ours, tensor in converted.items():
        key, rows = _runs(tensor, addresses.keys_by_number)
        is_whole = rows == ((0, counts.get(key, PROBED_ROWS)),)
        sources[ours] = Source(f"{prefix}{key}", None if is_whole else rows)
    return RowMap(sources, tuple(f"{prefix}{key}" for key in addresses.made_up))


def original_shapes(convert: Convert, seeds: Iterable[str], ours: Mapping[str, Shape]) -> dict[str, Shape]:
    """The names and shapes of the file's layout for parameters of ours: the converter is asked with next to nothing,
    and what it then asks for are the names. `seeds` are names by which it tells depth and variants."""
    addresses = _Addresses(dict.fromkeys(seeds, (PROBED_ROWS, 1)))
    found: dict[str, Shape] = {}
    for name, tensor in convert(addresses).items():
        if name not in ours:
            continue
        key, rows = _runs(tensor, addresses.keys_by_number)
        covered = sum(end - begin for begin, end in rows)
        shape = ours[name]
        found[key] = (shape[0] * PROBED_ROWS // covered, *shape[1:]) if shape else shape
    return found


def whole_shapes(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shapes of the file's tensors, of which some appear part by part, see `Source.name`."""
    found: dict[str, Shape] = {}
    for name, shape in shapes.items():
        source = Source.of(name)
        if source.rows is not None:
            rows = max(end for _, end in source.rows)
            shape = (max(rows, found.get(source.key, (0,))[0]), *shape[1:])
        found[source.key] = shape
    return found


def _addresses(number: int, shape: Shape) -> Tensor:
    rows = torch.arange(shape[0] if shape else 1, dtype=torch.int64) + (number << ROW_BITS)
    return rows.reshape(-1, *(1,) * max(len(shape) - 1, 0))


def _runs(tensor: Tensor, keys: list[str]) -> tuple[str, Rows]:
    """The tensor and its rows that addresses stand for. Raises `CheckpointError` for rows of several tensors."""
    flat = tensor.reshape(-1)
    breaks = (flat.diff() != 1).nonzero().flatten() + 1
    begins, ends = [0, *breaks.tolist()], [*breaks.tolist(), len(flat)]
    first = [int(flat[begin]) for begin in begins]
    numbers = {address >> ROW_BITS for address in first}
    if len(numbers) != 1:
        raise CheckpointError(f"a parameter is made of {len(numbers)} tensors of the file, which is not supported.")
    rows = [address & ((1 << ROW_BITS) - 1) for address in first]
    return keys[numbers.pop()], tuple(
        (row, row + end - begin) for row, begin, end in zip(rows, begins, ends, strict=True)
    )
