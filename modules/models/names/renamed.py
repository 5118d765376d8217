"""Tensors of one or more files under other names, as one file."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from modules.models.files.tensor_file import Closing, TensorEntry
from modules.models.files.tensor_source import TensorSource


@dataclass(frozen=True)
class Place:
    """A tensor of a file; `shape`: in which it appears, if not in its own."""

    file: TensorSource
    key: str
    shape: tuple[int, ...] | None = None


class RenamedFile(Closing):
    """A `TensorSource` of these tensors. Closes what `files` holds."""

    def __init__(
        self, path: Path, tensors: Mapping[str, Place], files: ExitStack, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = metadata or {}
        self.has_offsets = any(place.file.has_offsets for place in tensors.values())
        self._tensors = tensors
        self._files = files
        entries: dict[str, TensorEntry] = {}
        for name, place in tensors.items():
            entry = place.file.entries[place.key]
            entries[name] = replace(
                entry,
                shape=entry.shape if place.shape is None else place.shape,
                file=entry.file or place.file.path,
                has_offset=entry.has_offset and place.file.has_offsets,
            )
        self.entries: Mapping[str, TensorEntry] = entries

    def close(self) -> None:
        """Close the files; tensors that were read stay valid."""
        self._files.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor, see `TensorSource`."""
        place = self._tensors[name]
        there = place.file.entries[place.key].shape
        tensor = place.file.read(place.key, None if into is None else into.reshape(there))
        return tensor.reshape(self.entries[name].shape)


def renamed(file: TensorSource, names: Mapping[str, str]) -> RenamedFile:
    """`file`, which is closed with the result, with `names` (theirs to ours); other tensors keep their names.

    A table of positions gets the side of 1 back that writers of GGUF leave out.
    """
    files = ExitStack()
    files.push(file)
    tensors = {
        names.get(key, key): Place(file, key, (1, *entry.shape) if _lacks_a_side(key, entry.shape) else None)
        for key, entry in file.entries.items()
    }
    return RenamedFile(file.path, tensors, files, file.metadata)


def _lacks_a_side(key: str, shape: tuple[int, ...]) -> bool:
    return key.rpartition(".")[2] == "pos_embed" and len(shape) == 2
