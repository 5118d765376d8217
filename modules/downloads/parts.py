"""Part of a file that came so far, hidden next to its place."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from modules.downloads.following import Pieces, SyncedFile
from modules.downloads.remote_file import RemoteFile
from modules.errors import InvalidValueError, OutputError
from modules.system.atomic_files import output_error, sync_folder, write_atomic
from modules.system.bounded import read_json_file

CHUNK_BYTES = 1 << 20
KEPT_FREE_BYTES = 256 << 20  # of the disk, so that images can still be saved
PART_SUFFIX, NOTE_SUFFIX = ".part", ".part.json"
STORED_SUFFIXES = (".part.state", ".part.lock")
"""Endings of what earlier versions kept next to the part of a file that they stored in 8 bits meanwhile."""
STORED_MEANWHILE = (
    "Files are no longer stored in 8 bits while they are downloaded. Cancel this download, get the file as it is, and "
    "store it in 8 bits afterwards (Get models > On this disk, or launch.py convert)."
)


@dataclass(frozen=True)
class PartNote:
    """Note next to a part: which file it is a part of. `storage`: the format in which an earlier version stored
    it meanwhile; "" otherwise."""

    url: str
    size_bytes: int
    version: str
    sha256: str
    storage: str = ""


def beside(target: Path, suffix: str) -> Path:
    """The hidden file next to `target` that ends so."""
    return target.with_name(f".{target.name}{suffix}")


def noted(note: Path) -> PartNote | None:
    """None where there is none that can be read: then the part is begun again."""
    try:
        return PartNote(**read_json_file(note))
    except (OSError, ValueError, TypeError):
        return None


def discard(target: Path) -> None:
    """Forget what came of a file."""
    for suffix in (PART_SUFFIX, *STORED_SUFFIXES, NOTE_SUFFIX):
        beside(target, suffix).unlink(missing_ok=True)


def check_room(folder: Path, missing_bytes: int) -> None:
    """Raises `OutputError` where so many bytes have no room."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise output_error("The file", folder, error) from error
    lacking = missing_bytes + KEPT_FREE_BYTES - free
    if lacking > 0:
        raise OutputError(
            f"{folder} has {free / 1e9:.1f} GB free, and {missing_bytes / 1e9:.1f} GB are to come: free "
            f"{lacking / 1e9:.1f} GB more, or choose another folder."
        )


class Part:
    """A part that takes bytes. `done`: how many it has."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._path, self._note = beside(target, PART_SUFFIX), beside(target, NOTE_SUFFIX)
        self._wanted: PartNote | None = None
        self._stream: BinaryIO | None = None
        self.done = 0

    def begin(self, remote: RemoteFile) -> None:
        """Be ready for the bytes of this file from `done` on; what came of another version of it is thrown away. Raises
        `OutputError` where there is no room, and `InvalidValueError` for a part that was stored in 8 bits."""
        wanted = PartNote(remote.source.url, remote.size_bytes, remote.version, remote.sha256)
        if wanted == self._wanted:
            return
        known = noted(self._note)
        if known is not None and known.storage:
            raise InvalidValueError(STORED_MEANWHILE)
        is_new = known != wanted
        if is_new:
            self.close()
            discard(self._target)
        try:
            self._open(remote)
            write_atomic(self._note, json.dumps(asdict(wanted)).encode())
        except BaseException:
            self.close()
            if is_new:
                discard(self._target)
            raise
        self._wanted = wanted

    def _open(self, remote: RemoteFile) -> None:
        """Look at what is there, and whether the rest has room."""
        there = self._path.stat().st_size if self._path.exists() else 0
        check_room(self._target.parent, remote.size_bytes - there)
        self._digest, self.done = hashlib.sha256(), 0
        self._stream = self._path.open("ab")
        with self._path.open("rb") as stream:
            while chunk := stream.read(min(CHUNK_BYTES, remote.size_bytes - self.done)):
                self._digest.update(chunk)
                self.done += len(chunk)
        self._stream.truncate(self.done)

    def forget(self) -> None:
        """Begin at the first byte again."""
        assert self._stream is not None
        self._digest, self.done = hashlib.sha256(), 0
        self._stream.truncate(0)

    def receiving(self) -> Pieces:
        """Return what takes the next bytes; they count as `done` when the caller says so."""
        assert self._stream is not None
        return Pieces(self._digest.update, SyncedFile(self._stream).write)

    def first_bytes(self, size_bytes: int) -> bytes:
        """Return the first bytes as they came."""
        with self._path.open("rb") as stream:
            return stream.read(size_bytes)

    def end(self) -> str:
        """Put all onto the disk, and return its sha256."""
        assert self._stream is not None
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.close()
        return self._digest.hexdigest()

    def close(self) -> None:
        """Keep what came."""
        if self._stream is not None:
            self._stream.close()
        self._stream = self._wanted = None

    def appear(self) -> None:
        """Give the whole file its name, which nothing has taken meanwhile."""
        try:
            os.link(self._path, self._target)
        except FileExistsError as error:
            raise InvalidValueError(
                f"{self._target.name} has come into its folder meanwhile; the download is kept as a part."
            ) from error
        except OSError:  # a file system without links
            self._path.rename(self._target)
        sync_folder(self._target.parent)
        discard(self._target)
