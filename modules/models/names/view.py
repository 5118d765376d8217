"""One view over files of tensors: under other names, in other shapes, some rows of them, from several files.

What loading knows of a file's layout becomes a table of places. A view of a view is one of the files themselves, so a
tensor is read through a single view, however many tables were laid over each other.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.models.files.pieces import pieces_of
from modules.models.files.tensor_file import Closing, TensorEntry, TensorFile
from modules.models.files.tensor_source import TensorSource, has_offset, open_tensors
from modules.models.names.row_map import Rows


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: `key` of `file`, or some `rows` of it, one after the other, and then `transposed`.

    `shape`: in which it appears, if not in the one that this gives."""

    file: TensorSource
    key: str
    shape: tuple[int, ...] | None = None
    rows: Rows | None = None
    transposed: bool = False

    @property
    def as_stored(self) -> bool:
        """Whether its bytes are contiguous in the file, in our order."""
        return not self.transposed and (self.rows is None or len(self.rows) == 1)


class View(Closing):
    """A `TensorSource` of the tensors at these places, by name. Closes what `files` holds."""

    def __init__(
        self, path: Path, places: Mapping[str, Place], files: ExitStack, metadata: Mapping[str, str] | None = None
    ) -> None:
        """`path` and `metadata`: of the file that it stands for."""
        self.path = path
        self.metadata: Mapping[str, str] = metadata or {}
        self.places: Mapping[str, Place] = {name: _below(place) for name, place in places.items()}
        self.has_offsets = any(place.file.has_offsets for place in self.places.values())
        self.entries: Mapping[str, TensorEntry] = {name: entry_of(place, path) for name, place in self.places.items()}
        self._files = files

    def close(self) -> None:
        """Close the files; tensors that were read stay valid."""
        self._files.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor, see `TensorSource`."""
        place, entry = self.places[name], self.entries[name]
        if place.rows is None and not place.transposed:
            there = place.file.entries[place.key].shape
            return place.file.read(place.key, None if into is None else into.reshape(there)).reshape(entry.shape)
        if place.as_stored and isinstance(place.file, TensorFile):
            return place.file.read_entry(entry, place.key, into)  # no more of the file than this
        tensor = place.file.read(place.key)
        if place.rows is not None:
            tensor = torch.cat([tensor[begin:end] for begin, end in place.rows])
        return (tensor.T.contiguous() if place.transposed else tensor).reshape(entry.shape)


def open_whole(path: Path) -> TensorSource:
    """Open a file for reading, with all its pieces where it is one of several. Raises `CheckpointError` as
    `open_tensors` does, and for pieces that are missing or hold the same tensor."""
    pieces = pieces_of(path)
    if pieces == (path,):
        return open_tensors(path)
    with ExitStack() as files:
        places: dict[str, Place] = {}
        opened = [files.enter_context(open_tensors(piece)) for piece in pieces]
        for file in opened:
            double = next((name for name in file.entries if name in places), None)
            if double is not None:
                raise CheckpointError(
                    f"{path.name}: {double} is in {places[double].file.path.name} and in {file.path.name}, which are "
                    "no pieces of one model. Download all of them again."
                )
            places |= {name: Place(file, name) for name in file.entries}
        return View(path, places, files.pop_all(), opened[0].metadata)
    raise AssertionError("an exit stack suppresses nothing")


class Zeros(Closing):
    """A `TensorSource` of zeros, which lie in no file."""

    has_offsets = True
    metadata: Mapping[str, str] = {}

    def __init__(self, path: Path, entries: Mapping[str, TensorEntry]) -> None:
        self.path = path
        self.entries = entries

    def close(self) -> None:
        """There is nothing to close."""

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """See `TensorSource`."""
        entry = self.entries[name]
        return torch.zeros(entry.shape, dtype=entry.dtype) if into is None else into.zero_()


def lies_in_one_row(file: TensorSource, name: str) -> bool:
    """Whether a tensor's bytes are contiguous in its file, in our order, and the file says where they are."""
    return has_offset(file, name) and (not isinstance(file, View) or file.places[name].as_stored)


class Draft:
    """The tensors of files by the names that they have so far: a `View` is made of them when all names are known.

    `path` and `metadata` are those of the checkpoint that it stands for; `files` closes what is open.
    """

    def __init__(self, path: Path, files: ExitStack, metadata: Mapping[str, str] | None = None) -> None:
        self.path, self.files, self.metadata = path, files, metadata or {}
        self.places: dict[str, Place] = {}
        self._header: dict[str, TensorEntry] | None = None

    @classmethod
    def of(cls, file: TensorSource, files: ExitStack | None = None) -> "Draft":
        """Return the draft of one file under its own names; without `files` the file is closed with the view."""
        if files is None:
            files = ExitStack()
            files.push(file)
        draft = cls(file.path, files, file.metadata)
        draft.put({key: Place(file, key) for key in file.entries})
        return draft

    @property
    def header(self) -> Mapping[str, TensorEntry]:
        """The entries of all tensors."""
        if self._header is None:
            self._header = {name: entry_of(place, self.path) for name, place in self.places.items()}
        return self._header

    def put(self, places: Mapping[str, Place]) -> None:
        """Have these tensors, and no others."""
        self.places, self._header = dict(places), None

    def rename(self, names: Mapping[str, str]) -> None:
        """Give tensors other names (theirs to ours); others keep theirs. A table of positions gets the side of 1 back
        that writers of GGUF leave out."""
        header = self.header
        self.put(
            {
                names.get(key, key): replace(place, shape=(1, *header[key].shape))
                if _lacks_a_side(key, header[key].shape)
                else place
                for key, place in self.places.items()
            }
        )

    def view(self) -> View:
        """Return the view, which closes the files."""
        return View(self.path, self.places, self.files.pop_all(), self.metadata)


def renamed(file: TensorSource, names: Mapping[str, str]) -> View:
    """Return `file`, which is closed with the result, under other names, see `Draft.rename`."""
    draft = Draft.of(file)
    draft.rename(names)
    return draft.view()


def part_of(place: Place, path: Path, rows: Rows | None, transposed: bool) -> Place:
    """Return the place of some rows of the tensor at a place, or of the transposed; `path` is for errors."""
    if rows is None and not transposed:
        return place
    if place.rows is None and not place.transposed and place.shape is None:
        return replace(place, rows=rows, transposed=transposed)
    return Place(View(path, {"": place}, ExitStack()), "", None, rows, transposed)


def _lacks_a_side(key: str, shape: tuple[int, ...]) -> bool:
    return key.rpartition(".")[2] == "pos_embed" and len(shape) == 2


def _below(place: Place) -> Place:
    """The place in the file below a view; the same where the two cannot be said as one."""
    entry = place.file.entries[place.key]
    if place.shape == entry.shape and place.rows is None and not place.transposed:
        place = replace(place, shape=None)
    if not isinstance(place.file, View):
        return place
    below = place.file.places[place.key]
    if place.rows is None and not place.transposed:
        return below if place.shape is None else replace(below, shape=place.shape)
    if below.rows is None and not below.transposed and below.shape is None:
        return replace(place, file=below.file, key=below.key)
    return place


def entry_of(place: Place, path: Path) -> TensorEntry:
    """Return how a tensor appears in a view that stands for `path`."""
    entry = place.file.entries[place.key]
    if not place.file.has_offsets:
        entry = replace(entry, has_offset=False)
    if entry.file is None and place.file.path != path:
        entry = replace(entry, file=place.file.path)
    if place.transposed:
        entry = replace(entry, shape=entry.shape[::-1], packed=None, coded=entry.packed or entry.coded, rotated=None)
    elif place.rows is not None:
        entry = _entry_of_rows(entry, place.rows)
    return entry if place.shape is None else replace(entry, shape=place.shape)


def _entry_of_rows(entry: TensorEntry, rows: Rows) -> TensorEntry:
    row_bytes, left = divmod(entry.size_bytes, entry.shape[0])
    height = sum(end - begin for begin, end in rows)
    packed = entry.packed if len(rows) == 1 and not left else None
    coded = entry.coded if packed == entry.packed else entry.packed
    begin = entry.begin + (rows[0][0] * row_bytes if len(rows) == 1 else 0)
    shape = (height, *entry.shape[1:])
    end = begin + height * row_bytes
    return replace(entry, shape=shape, begin=begin, end=end, packed=packed, coded=coded, rotated=None)
