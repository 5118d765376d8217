"""Recognition of a model file on disk, by its header alone; and which entries of the list that ships it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from modules.downloads.known import KnownModel
from modules.models.detection.files import Detected, detected
from modules.models.files.header import Header, header_of


@dataclass(frozen=True)
class Looked:
    """A header, without its JSON, and what it says."""

    header: Header
    found: Detected


class Headers:
    """Reads headers, each once while its file stays unchanged. Threads may share it."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], Looked]] = {}

    def of(self, path: Path) -> Looked:
        """Return the header of a file and what it says; an empty one for what cannot be read."""
        try:
            stat = path.stat()
        except OSError:  # gone since the folder was listed
            return Looked(Header(""), Detected())
        stamp = (stat.st_size, stat.st_mtime_ns)
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            header = replace(header_of(path), raw=b"")
            known = self._known[path] = (stamp, Looked(header, detected(header)))
        return known[1]


def is_model(entry: KnownModel, file: Looked) -> bool:
    """Return whether a file is an entry of the list, or holds it."""
    if file.header.architecture:
        return file.header.architecture in entry.gguf
    return any(part.type in entry.types and entry.width in (0, part.width) for part in file.found.parts)


def missing_parts(
    path: Path, known: Mapping[str, KnownModel], files: Iterable[Path], headers: Headers
) -> tuple[KnownModel, ...]:
    """Return the parts that a checkpoint needs by the list and that are neither in itself nor among `files`."""
    file = headers.of(path)
    model = next((one for one in known.values() if one.parts and is_model(one, file)), None)
    if model is None:
        return ()
    there = (file, *map(headers.of, files))
    return tuple(known[part] for part in model.parts if not any(is_model(known[part], each) for each in there))
