"""Fused tensors of a checkpoint one by one, as our modules have them, and together again.

OpenCLIP keeps the projections of query, key and value in one tensor `attn.in_proj_weight` [3w, w], the
positions in a bare parameter, and its text projection transposed. Through `unfused` they are
`attn.q_proj.weight` ..., `positional_embedding.weight` and `text_projection.weight`; everything else passes unchanged.
Where the file has offsets, the parts of a fused tensor have theirs: they lie one behind the other.

Families whose key map is derived (`row_map`) have the parts of their fused tensors here by rows, see `Source.name`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from modules.errors import CheckpointError, InvalidValueError
from modules.models.files.tensor_source import TensorSource
from modules.models.files.tensor_writer import TensorWriter
from modules.models.names.component import Header
from modules.models.names.ema_names import restored_names
from modules.models.names.row_map import RowMap, Rows, Source
from modules.models.names.view import Draft, Place, View, part_of

OPEN_CLIP = r"^((?:cond_stage_model|conditioner\.embedders\.\d+)\.model)"
FUSED = re.compile(rf"{OPEN_CLIP}\.(.*attn)\.in_proj_(weight|bias)$")
SCALES = ("scale_weight", "weight_scale")
FUSED_SCALE = re.compile(rf"{OPEN_CLIP}\.(.*attn)\.in_proj\.({'|'.join(SCALES)})$")
PART = re.compile(rf"{OPEN_CLIP}\.(.*attn)\.([qkv]_proj)\.(weight|bias|{'|'.join(SCALES)})$")
BARE_WEIGHT = re.compile(rf"{OPEN_CLIP}\.(positional_embedding|text_projection)\.weight$")
BARE = re.compile(rf"{OPEN_CLIP}\.(positional_embedding|text_projection)$")
PARTS = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True)
class Origin:
    """Which tensor of the file a name stands for: all of it, its third number `part`, or `rows` of it; `transposed` or
    not."""

    key: str
    part: int | None = None
    transposed: bool = False
    rows: Rows | None = None

    @property
    def as_stored(self) -> bool:
        """Whether its bytes are contiguous in the file, in our order."""
        return not self.transposed and (self.rows is None or len(self.rows) == 1)


class KnowsRows(Protocol):
    """An object that knows which rows of a file's tensors are ours, such as a `ModelFamily`."""

    def row_map_of(self, header: Header) -> RowMap | None:
        """None for files that it does not know."""


def unfused(file: TensorSource, families: Sequence[KnowsRows]) -> View:
    """Return `file`, which is closed with the result, with its fused tensors one by one, see `unfuse`."""
    draft = Draft.of(file)
    unfuse(draft, families)
    return draft.view()


def unfuse(draft: Draft, families: Sequence[KnowsRows]) -> None:
    """Have the fused tensors one by one. `families` say which tensors hold several of ours. Raises `CheckpointError`
    for a file too incomplete to tell."""
    header = draft.header
    parts = _parts_by_key(draft.path, header, families)
    with_dots = restored_names(header)
    places: dict[str, Place] = {}
    for key, place in draft.places.items():
        named = [(with_dots[key], Origin(key))] if key in with_dots else _named(key, parts)
        for name, origin in named:
            places[name] = part_of(place, draft.path, _rows_of(origin, header[key].shape), origin.transposed)
    draft.put(places)


class LayoutWriter:
    """A `TensorWriter` that is given the tensors as `unfused` has them, in any order, and writes the original
    layout. Scales of fused weights lie side by side in one tensor, as their rows do.

    Raises `InvalidValueError` where the parts of one tensor are to be stored differently.
    """

    def __init__(
        self,
        target: Path,
        declared: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
        room: int,
        make_writer: Callable[[Path, Mapping[str, tuple[torch.dtype, tuple[int, ...]]], int], Any] = TensorWriter,
    ) -> None:
        """`make_writer` makes what writes the file, called as `TensorWriter` is."""
        joined: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for name, (dtype, shape) in declared.items():
            origin = original_name(name)
            shape = shape[::-1] if origin.transposed else shape
            if origin.rows is not None:
                shape = (_height(origin.rows), *shape[1:])  # a single scale becomes one of each row
            before = joined.get(origin.key)
            if before is not None:
                if before[0] != dtype:
                    raise InvalidValueError(
                        f"{origin.key} holds the projections of query, key and value in one tensor, so all three or "
                        "none of them must be skipped. Change the skip patterns."
                    )
                shape = (before[1][0] + shape[0], *shape[1:])
            joined[origin.key] = (dtype, shape)
        self._writer = make_writer(target, joined, room)
        self._shapes = {key: shape for key, (_, shape) in joined.items()}
        self._parts: dict[str, dict[int, Tensor]] = {}
        self._rows: dict[str, list[tuple[Rows, Tensor]]] = {}

    @property
    def metadata(self) -> dict[str, str]:
        """Return what goes into the header's `__metadata__`; set it before the end."""
        metadata: dict[str, str] = self._writer.metadata
        return metadata

    @metadata.setter
    def metadata(self, metadata: dict[str, str]) -> None:
        self._writer.metadata = metadata

    def __enter__(self) -> "LayoutWriter":
        self._writer.__enter__()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(error_type, error, trace)

    def write(self, name: str, tensor: Tensor) -> None:
        """Write one tensor, or keep it until the others of its fused tensor are there."""
        origin = original_name(name)
        if origin.rows is not None:
            self._write_rows(origin.key, origin.rows, tensor)
            return
        if origin.part is None:
            self._writer.write(origin.key, tensor.T.contiguous() if origin.transposed else tensor)
            return
        parts = self._parts.setdefault(origin.key, {})
        parts[origin.part] = tensor
        if len(parts) == len(PARTS):
            self._writer.write(origin.key, torch.cat([parts[index] for index in range(len(PARTS))]))
            del self._parts[origin.key]

    def _write_rows(self, key: str, rows: Rows, tensor: Tensor) -> None:
        parts = self._rows.setdefault(key, [])
        parts.append((rows, tensor if tensor.ndim and len(tensor) > 1 else tensor.expand(_height(rows))))
        shape = self._shapes[key]
        if sum(_height(rows) for rows, _ in parts) < shape[0]:
            return
        whole = tensor.new_empty(shape)
        for runs, part in self._rows.pop(key):
            pieces = torch.split(part, [end - begin for begin, end in runs])
            for (begin, end), piece in zip(runs, pieces, strict=True):
                whole[begin:end] = piece
        self._writer.write(key, whole)


def original_name(name: str) -> Origin:
    """The tensor of the original layout that a name of `unfused` stands for."""
    part = PART.match(name)
    if part is not None:
        ending = f".{part[4]}" if part[4] in SCALES else f"_{part[4]}"
        return Origin(f"{part[1]}.{part[2]}.in_proj{ending}", PARTS.index(part[3]))
    source = Source.of(name)
    if source.rows is not None:
        return Origin(source.key, rows=source.rows)
    bare = BARE_WEIGHT.match(name)
    if bare is not None:
        return Origin(name.removesuffix(".weight"), transposed=bare[2] == "text_projection")
    return Origin(name)


def _parts_by_key(path: Path, header: Header, families: Sequence[KnowsRows]) -> dict[str, list[Source]]:
    """The tensors of a file that are several of ours, or have their rows in another order."""
    found: dict[str, list[Source]] = {}
    for family in families:
        try:
            rows = family.row_map_of(header)
        except CheckpointError as error:
            raise CheckpointError(f"{path.name}: {error}") from error
        if rows is not None:
            found |= {key: [source for source in sources if source.rows] for key, sources in rows.by_key().items()}
    return found


def _height(rows: Rows) -> int:
    return sum(end - begin for begin, end in rows)


def _named(key: str, parts: Mapping[str, list[Source]]) -> list[tuple[str, Origin]]:
    """The names under which a tensor of the file appears."""
    stem, _, leaf = key.rpartition(".")
    sources = parts.get(f"{stem}.weight" if leaf in SCALES else key)
    if sources:
        own = [Source(key, source.rows) for source in sources]
        return [(source.name, Origin(key, rows=source.rows)) for source in own]
    fused = FUSED.match(key) or FUSED_SCALE.match(key)
    if fused is not None:
        return [(f"{fused[1]}.{fused[2]}.{part}.{fused[3]}", Origin(key, index)) for index, part in enumerate(PARTS)]
    bare = BARE.match(key)
    if bare is not None:
        return [(f"{key}.weight", Origin(key, transposed=bare[2] == "text_projection"))]
    return [(key, Origin(key))]


def _rows_of(origin: Origin, shape: tuple[int, ...]) -> Rows | None:
    """Return the rows of a part in a tensor of this shape; None for all: a single scale is that of all parts."""
    if not shape or shape[0] == 1:
        return None
    third = shape[0] // len(PARTS)
    return origin.rows if origin.part is None else ((origin.part * third, (origin.part + 1) * third),)
