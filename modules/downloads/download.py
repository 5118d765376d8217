"""One file from a server to its folder: in a part file that a later try goes on with, hashed while it comes, and under
its name only when it is whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from modules.atomic_files import output_error, sync_folder, write_atomic
from modules.downloads.following import Pieces, SyncedFile
from modules.downloads.remote_file import RemoteFile, look
from modules.downloads.transport import DownloadError, FileTransport, GoneAwayError
from modules.errors import BusyError, InvalidValueError, OutputError

CHUNK_BYTES = 1 << 20
KEPT_FREE_BYTES = 256 << 20  # of the disk, so that images can still be saved
TRIES = 6
FIRST_WAIT_S = 1.0
PART_SUFFIX = ".part"
NOTE_SUFFIX = ".part.json"

OnProgress = Callable[[int, int], None]
"""(bytes so far, bytes of the file); raises to stop, and what came is kept."""


@dataclass(frozen=True)
class Downloaded:
    """A file that is there. `was_there`: it was before, with the same bytes."""

    path: Path
    size_bytes: int
    sha256: str
    was_there: bool = False


@dataclass(frozen=True)
class PartNote:
    """What stands next to a part file: which file it is a part of."""

    url: str
    size_bytes: int
    etag: str
    sha256: str


def download(
    remote: RemoteFile,
    folder: Path,
    name: str,
    transport: FileTransport,
    claims: Claims,
    on_progress: OnProgress,
    sleep: Callable[[float], None] = time.sleep,
) -> Downloaded:
    """Get a file as `folder` / `name`. What is already there of it is gone on with; a connection that breaks is made
    again, `TRIES` times without a new byte.

    Raises `InvalidValueError` for a name that another file has, `OutputError` where the disk has no room, and
    `DownloadError` where the other side does not give what it announced.
    """
    target = folder / name
    there = _already(target, remote)
    if there is not None:
        return there
    part, note = _parts(target)
    with claims.claim(target):
        _check_room(folder, remote, part)
        fails, wait = 0, FIRST_WAIT_S
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                digest = _transfer(remote, part, note, transport, on_progress)
                break
            except (GoneAwayError, BusyError):
                fails = 0 if part.exists() and part.stat().st_size > before else fails + 1
                if fails >= TRIES:
                    raise
                wait = FIRST_WAIT_S if fails == 0 else min(wait * 2, 30.0)
                sleep(wait)
                remote = look(remote.source, transport)
            except OSError as error:
                raise output_error(name, folder, error) from error
        if remote.sha256 and digest != remote.sha256:
            part.unlink()
            note.unlink(missing_ok=True)
            raise DownloadError(
                f"{name}: what came is not what was announced (sha256 {digest[:12]} in place of {remote.sha256[:12]}). "
                "It was thrown away; try again, and if that happens twice, get it elsewhere."
            )
        _appear(part, target)
        note.unlink(missing_ok=True)
    return Downloaded(target, remote.size_bytes, digest)


def _already(target: Path, remote: RemoteFile) -> Downloaded | None:
    if not target.exists():
        return None
    if target.stat().st_size == remote.size_bytes:
        digest = _hash_of(target)
        if not remote.sha256 or digest == remote.sha256:
            return Downloaded(target, remote.size_bytes, digest, was_there=True)
    raise InvalidValueError(
        f"{target.name} is already in {target.parent.name} and is another file. Choose another name, or move "
        "it away first."
    )


def _check_room(folder: Path, remote: RemoteFile, part: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise output_error(remote.name or "The file", folder, error) from error
    missing = remote.size_bytes - (part.stat().st_size if part.exists() else 0) + KEPT_FREE_BYTES - free
    if missing > 0:
        raise OutputError(
            f"{folder} has {free / 1e9:.1f} GB free, and {remote.size_bytes / 1e9:.1f} GB are to come: free "
            f"{missing / 1e9:.1f} GB more, or choose another folder."
        )


def _transfer(remote: RemoteFile, part: Path, note: Path, transport: FileTransport, on_progress: OnProgress) -> str:
    """The rest of the file into the part file; its sha256 as hex."""
    wanted = PartNote(remote.source.url, remote.size_bytes, remote.etag, remote.sha256)
    if part.exists() and _noted(note) != wanted:
        part.unlink()  # of another version of the file
    write_atomic(note, json.dumps(asdict(wanted)).encode())
    digest = hashlib.sha256()
    with part.open("ab") as stream:
        done = _hashed(part, digest, remote.size_bytes)
        stream.truncate(done)
        on_progress(done, remote.size_bytes)
        if done < remote.size_bytes:
            with (
                transport.get(remote.source.url, done, None, remote.etag or None)
                if done
                else transport.get(remote.source.url) as reply
            ):
                if reply.status == 416:
                    raise DownloadError(f"{part.name}: the file on the server is smaller than it was announced.")
                begins = int(reply.headers.get("Content-Range", "bytes 0-").split()[-1].partition("-")[0] or 0)
                if reply.status == 200 or begins != done:
                    # The server knows no ranges, or has another version of the file by now.
                    digest, done = hashlib.sha256(), 0
                    stream.truncate(0)
                    if reply.status == 206 and begins:
                        raise GoneAwayError(
                            f"The server sends the file from byte {begins} on, which was not asked for."
                        )
                announced = reply.headers.get("Content-Length", "")
                if announced.isdigit() and done + int(announced) != remote.size_bytes:
                    stream.truncate(0)
                    raise GoneAwayError("The file on the server has another size by now; it is begun again.")
                is_too_much = False
                with Pieces(digest.update, SyncedFile(stream).write) as pieces:
                    for chunk in reply.chunks():
                        is_too_much = done + len(chunk) > remote.size_bytes
                        if is_too_much:
                            break
                        pieces.put(chunk)
                        done += len(chunk)
                        on_progress(done, remote.size_bytes)
                if is_too_much:
                    stream.truncate(0)
                    raise DownloadError(
                        f"{part.name}: the server sends more than the {remote.size_bytes} bytes that it announced."
                    )
        stream.flush()
        os.fsync(stream.fileno())
    if done < remote.size_bytes:
        raise GoneAwayError(f"The server ended after {done} of {remote.size_bytes} bytes.")
    return digest.hexdigest()


def _noted(note: Path) -> PartNote | None:
    try:
        return PartNote(**json.loads(note.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None  # there is none that can be read: the part is begun again


def _hashed(path: Path, digest: hashlib._Hash, limit: int) -> int:
    """Hash what is there, and say how much that is."""
    done = 0
    with path.open("rb") as stream:
        while done < limit and (chunk := stream.read(min(CHUNK_BYTES, limit - done))):
            digest.update(chunk)
            done += len(chunk)
    return done


def _hash_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _appear(part: Path, target: Path) -> None:
    """Give the whole file its name, which nothing has taken meanwhile."""
    try:
        os.link(part, target)
    except FileExistsError as error:
        raise InvalidValueError(
            f"{target.name} has come into its folder meanwhile; the download is kept as a part."
        ) from error
    except OSError:  # a file system without links
        part.rename(target)
    else:
        part.unlink()
    sync_folder(target.parent)


def _parts(target: Path) -> tuple[Path, Path]:
    hidden = target.with_name(f".{target.name}")
    return hidden.with_name(hidden.name + PART_SUFFIX), hidden.with_name(hidden.name + NOTE_SUFFIX)


@dataclass(frozen=True)
class Unfinished:
    """A part of a file that somebody may go on with. `url`: where the rest is."""

    folder: Path
    name: str
    url: str
    done_bytes: int
    size_bytes: int


def unfinished_in(folder: Path) -> list[Unfinished]:
    """The parts in a folder, by name."""
    found = []
    for note in sorted(folder.glob(f".*{NOTE_SUFFIX}")):
        name = note.name[1:].removesuffix(NOTE_SUFFIX)
        noted, part = _noted(note), note.with_name(f".{name}{PART_SUFFIX}")
        if noted is not None and part.is_file():
            found.append(Unfinished(folder, name, noted.url, part.stat().st_size, noted.size_bytes))
    return found


def discard(target: Path) -> None:
    """Forget what came of a file."""
    for path in _parts(target):
        path.unlink(missing_ok=True)


class Claims:
    """Each file is got once at a time in this program."""

    def __init__(self) -> None:
        self._taken: set[Path] = set()
        self._lock = threading.Lock()

    def has(self, target: Path) -> bool:
        """Whether somebody gets this file now."""
        with self._lock:
            return target.resolve() in self._taken

    @contextmanager
    def claim(self, target: Path) -> Iterator[None]:
        """While open, nobody else gets this file. Raises `BusyError` where somebody does."""
        path = target.resolve()
        with self._lock:
            if path in self._taken:
                raise BusyError(f"{path.name} is being downloaded already.")
            self._taken.add(path)
        try:
            yield
        finally:
            with self._lock:
                self._taken.discard(path)
