"""A checkpoint file whose fused tensors appear one by one, as our modules have them.

OpenCLIP keeps the projections of query, key and value in one tensor `attn.in_proj_weight` [3w, w], the
positions in a bare parameter, and its text projection transposed. Through `OpenClipLayout` they are
`attn.q_proj.weight` ..., `positional_embedding.weight` and `text_projection.weight`; everything else passes unchanged.
Where the file has offsets, the parts of a fused tensor have theirs: they lie one behind the other.

Families whose key map is derived (`row_map`) have the parts of their fused tensors here by rows, see `Source.name`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from modules.errors import CheckpointError, InvalidValueError
from modules.models.families.external_text_encoders import with_external_encoders
from modules.models.families.family import ModelFamily
from modules.models.families.registry import FAMILIES
from modules.models.files.tensor_file import Closing, TensorEntry, TensorFile
from modules.models.files.tensor_source import TensorSource, open_tensors
from modules.models.files.tensor_writer import TensorWriter
from modules.models.loading.assembled import assembled, with_whole_names
from modules.models.loading.diffusers_layout import DiffusersLayout, is_diffusers_file
from modules.models.loading.foreign_names import checkpoint_names, part_names
from modules.models.names.component import Header
from modules.models.names.ema_names import restored_names
from modules.models.names.renamed import renamed
from modules.models.names.row_map import RowMap, Rows, Source

OPEN_CLIP = r"^((?:cond_stage_model|conditioner\.embedders\.\d+)\.model)"
FUSED = re.compile(rf"{OPEN_CLIP}\.(.*attn)\.in_proj_(weight|bias)$")
SCALES = ("scale_weight", "weight_scale")
FUSED_SCALE = re.compile(rf"{OPEN_CLIP}\.(.*attn)\.in_proj\.({'|'.join(SCALES)})$")
PART = re.compile(rf"{OPEN_CLIP}\.(.*attn)\.([qkv]_proj)\.(weight|bias|{'|'.join(SCALES)})$")
BARE_WEIGHT = re.compile(rf"{OPEN_CLIP}\.(positional_embedding|text_projection)\.weight$")
BARE = re.compile(rf"{OPEN_CLIP}\.(positional_embedding|text_projection)$")
GGUF_SUFFIX = ".gguf"
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
    """What says which rows of a file's tensors are ours: a `ModelFamily`, for one."""

    def row_map_of(self, header: Header) -> RowMap | None:
        """None for files that it does not know."""


class OpenClipLayout(Closing):
    """A `TensorSource` around another one."""

    def __init__(
        self, file: TensorSource, families: Sequence[KnowsRows] | None = None, hidden: tuple[str, ...] = ()
    ) -> None:
        """The families (None: all) say which tensors hold several of ours. Those whose names begin with one of
        `hidden` are left out."""
        self._file = file
        self.path: Path = file.path
        self.metadata = file.metadata
        self.has_offsets = file.has_offsets
        self.origins: dict[str, Origin] = {}
        entries: dict[str, TensorEntry] = {}
        parts = _parts_by_key(file, registered() if families is None else families)
        renamed = restored_names(file.entries)
        for key, entry in file.entries.items():
            if key.startswith(hidden):
                continue
            named = [(renamed[key], Origin(key))] if key in renamed else _named(key, parts)
            for name, origin in named:
                self.origins[name] = origin
                entries[name] = _entry(entry, origin)
        self.entries: Mapping[str, TensorEntry] = entries

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor, on the CPU, in memory of its own or in `into`, see `TensorSource`."""
        origin = self.origins[name]
        if not origin.as_stored and origin.rows is not None:
            return _picked(self._file.read(origin.key), origin.rows)
        if isinstance(self._file, TensorFile):
            entry = self.entries[name]
            if origin.transposed:
                entry = replace(entry, shape=entry.shape[::-1])
                return self._file.read_entry(entry, origin.key).T.contiguous()
            return self._file.read_entry(entry, origin.key, into)
        if origin.part is None and origin.rows is None and not origin.transposed:
            return self._file.read(origin.key, into)
        tensor = self._file.read(origin.key)
        if origin.rows is not None:
            return _picked(tensor, origin.rows)
        if origin.part is not None and tensor.numel() > 1:  # a single scale is that of all three
            rows = tensor.shape[0] // len(PARTS)
            tensor = tensor[origin.part * rows : (origin.part + 1) * rows].clone()
        return tensor.T.contiguous() if origin.transposed else tensor


def registered() -> tuple[ModelFamily, ...]:
    """All families, the most special last."""
    return tuple(family for _, family in FAMILIES.items())


def open_checkpoint(
    path: Path,
    with_optional: bool = False,
    optional_beside: bool = True,
    modules: Sequence[Path] = (),
    families: Sequence[ModelFamily] | None = None,
) -> OpenClipLayout:
    """Open a checkpoint, a file or a folder in the diffusers layout; raises `CheckpointError` for a file that is not
    what its suffix says. A text encoder that its family can do without, inside of it or (`optional_beside`) in a file
    of its own, is there only if it is asked for. `modules`: files with its text encoders and VAE, see `assembled`.
    `families`: those that it may be of, the most special last; None: all that are registered."""
    families = registered() if families is None else families
    if path.is_dir():
        file: TensorSource = DiffusersLayout.of_folder(path, families, with_optional)
    else:
        file = _opened(path, families)
    if is_diffusers_file(file.entries, families):
        file = DiffusersLayout.of_file(file, families)
    file = assembled(file, modules, families)
    optional = [family.optional_encoder for family in families if family.detects_denoiser(file.entries)]
    levels = tuple(encoder.level for encoder in optional if encoder is not None)
    known = [encoder for family in families for encoder in family.external_encoders if not encoder.is_part]
    whole = with_external_encoders(file, known, with_optional and optional_beside)
    return OpenClipLayout(whole, families, () if with_optional else levels)


def _opened(path: Path, families: Sequence[ModelFamily]) -> TensorSource:
    """A file of tensors with the names of a checkpoint in the original or the diffusers layout."""
    file = with_whole_names(open_tensors(path), families)
    names = part_names(file.entries, families)
    file = renamed(file, names) if names else file
    return renamed(file, checkpoint_names(file.entries)) if path.suffix.lower() == GGUF_SUFFIX else file


class LayoutWriter:
    """A `TensorWriter` that is given the tensors as `OpenClipLayout` has them, in any order, and writes the original
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
        """What goes into the header's `__metadata__`; set it before the end."""
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
    """The tensor of the original layout that a name of `OpenClipLayout` stands for."""
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


def _parts_by_key(file: TensorSource, families: Sequence[KnowsRows]) -> dict[str, list[Source]]:
    """The tensors of a file that are several of ours, or have their rows in another order."""
    found: dict[str, list[Source]] = {}
    for family in families:
        try:
            rows = family.row_map_of(file.entries)
        except CheckpointError as error:
            raise CheckpointError(f"{file.path.name}: {error}") from error
        if rows is not None:
            found |= {key: [source for source in sources if source.rows] for key, sources in rows.by_key().items()}
    return found


def _height(rows: Rows) -> int:
    return sum(end - begin for begin, end in rows)


def _picked(tensor: Tensor, rows: Rows) -> Tensor:
    """Some rows; a single scale is that of all."""
    return tensor if tensor.numel() == 1 else torch.cat([tensor[begin:end] for begin, end in rows])


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


def _entry(entry: TensorEntry, origin: Origin) -> TensorEntry:
    if origin.transposed:
        return replace(entry, shape=entry.shape[::-1], packed=None, coded=entry.packed or entry.coded, rotated=None)
    if not entry.shape or entry.shape[0] == 1:
        return entry
    rows = origin.rows
    if origin.part is not None:
        third = entry.shape[0] // len(PARTS)
        rows = ((origin.part * third, (origin.part + 1) * third),)
    if rows is None:
        return entry
    row_bytes = entry.size_bytes // entry.shape[0]
    begin, size = entry.begin + rows[0][0] * row_bytes, _height(rows) * row_bytes
    packed = entry.packed if len(rows) == 1 and entry.size_bytes % entry.shape[0] == 0 else None
    coded = entry.coded if packed == entry.packed else entry.packed
    if len(rows) > 1:
        begin = entry.begin
    shape = (_height(rows), *entry.shape[1:])
    return replace(entry, shape=shape, begin=begin, end=begin + size, packed=packed, coded=coded, rotated=None)
