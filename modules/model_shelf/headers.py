"""Recognition of a model file on disk, by its header alone; and which entries of the list that ships it lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from modules.downloads.known import KnownModel, entries_for
from modules.models.detection.files import Detected, detected
from modules.models.files.file_header import header_of
from modules.models.files.header import Header


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


def missing_parts(
    path: Path, known: Mapping[str, KnownModel], files: Iterable[Path], headers: Headers
) -> tuple[KnownModel, ...]:
    """Return the entries of the list for the parts that a checkpoint needs, and that are neither in itself nor among
    `files`."""
    there = [part for file in files for part in headers.of(file).found.parts]
    return tuple(one for one in entries_for(headers.of(path).found.missing, known) if not one.is_among(there))
