"""What a model file on disk says of itself, by its header alone; and which entries of the list that ships it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from modules.downloads.known import KnownModel
from modules.models.files.header import Header, Stored, header_of


class Headers:
    """Reads headers, each once while its file stays unchanged. Threads may share it."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], Header]] = {}

    def of(self, path: Path) -> Header:
        """Return the header of a file; an empty one for what cannot be read."""
        try:
            stat = path.stat()
        except OSError:  # gone since the folder was listed
            return Header("")
        stamp = (stat.st_size, stat.st_mtime_ns)
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            known = self._known[path] = (stamp, replace(header_of(path), raw=b""))
        return known[1]


def is_model(entry: KnownModel, header: Header) -> bool:
    """Return whether a header has what the list says that tells this entry. Names may be behind others ("vae.")."""
    if header.architecture:
        return header.architecture in entry.gguf
    return bool(entry.tells) and all(_has(header.tensors, name, tuple(shape)) for name, shape in entry.tells.items())


def _has(tensors: Mapping[str, Stored], name: str, shape: tuple[int, ...]) -> bool:
    return any(
        (found == name or found.endswith(f".{name}")) and (not shape or each.shape == shape)
        for found, each in tensors.items()
    )


def missing_parts(
    path: Path, known: Mapping[str, KnownModel], files: Iterable[Path], headers: Headers
) -> tuple[KnownModel, ...]:
    """Return the parts that a checkpoint needs by the list and that are neither in itself nor among `files`."""
    header = headers.of(path)
    model = next((one for one in known.values() if one.parts and is_model(one, header)), None)
    if model is None:
        return ()
    there = (header, *map(headers.of, files))
    return tuple(known[part] for part in model.parts if not any(is_model(known[part], each) for each in there))
