"""One file from a server to its folder: in a part that a later try goes on with, hashed while it comes, and under its
name only when it is whole."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from modules.downloads.parts import NOTE_SUFFIX, PART_SUFFIX, Part, discard, noted
from modules.downloads.remote_file import CONTENT_RANGE, SIZE, RemoteFile, look, version_of
from modules.downloads.transport import DownloadError, FileTransport, GoneAwayError, TooSlowError
from modules.errors import BusyError, InvalidValueError
from modules.system.atomic_files import output_error

TRIES = 6
FIRST_WAIT_S = 1.0

OnProgress = Callable[[int, int], None]
"""(bytes so far, bytes of the file); raises to stop, and what came is kept."""


@dataclass(frozen=True)
class Downloaded:
    """A file that is there. `was_there`: it was before, with the same bytes."""

    path: Path
    size_bytes: int
    sha256: str
    was_there: bool = False


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
    with claims.claim(target):
        part = Part(target)
        fails, wait = 0, FIRST_WAIT_S
        try:
            while True:
                before = part.done
                try:
                    digest = _transfer(remote, part, transport, on_progress)
                    break
                except GoneAwayError as error:
                    fails = 0 if part.done > before and not isinstance(error, TooSlowError) else fails + 1
                    if fails >= TRIES:
                        raise
                except BusyError:
                    fails += 1
                    if fails >= TRIES:
                        raise
                wait = FIRST_WAIT_S if fails == 0 else min(wait * 2, 30.0)
                sleep(wait)
                remote = look(remote.source, transport)
        except OSError as error:
            raise output_error(name, folder, error) from error
        finally:
            part.close()
        if part.first_bytes(len(remote.begins)) != remote.begins:
            discard(target)
            raise DownloadError(
                f"{name}: the file does not begin as it did when it was looked at. It was thrown away; try again."
            )
        if remote.sha256 and digest != remote.sha256:
            discard(target)
            raise DownloadError(
                f"{name}: what came is not what was announced (sha256 {digest[:12]} in place of {remote.sha256[:12]}). "
                "It was thrown away; try again, and if that happens twice, get it elsewhere."
            )
        part.appear()
    return Downloaded(target, target.stat().st_size, digest)


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


def _transfer(remote: RemoteFile, part: Part, transport: FileTransport, on_progress: OnProgress) -> str:
    """The rest of the file into the part; the sha256 of all of it as hex."""
    part.begin(remote)
    on_progress(part.done, remote.size_bytes)
    if part.done < remote.size_bytes:
        if not (remote.version or remote.sha256):
            part.forget()  # nothing says that the rest is of the same file
        source, begin = remote.source, part.done or None
        wanted = (remote.version or None) if begin else None
        with transport.get(source.url, begin, None, wanted, may_be_local=source.is_typed) as reply:
            if reply.status == 416:
                raise DownloadError(f"{remote.name}: the file on the server is smaller than it was announced.")
            if reply.status == 206 and remote.version and version_of(reply) not in ("", remote.version):
                part.forget()
                raise GoneAwayError("The file on the server has changed meanwhile; it is begun again.")
            said = reply.headers.get("Content-Range", "bytes 0-")
            place = CONTENT_RANGE.match(said)
            if place is None:
                raise GoneAwayError(f"The server says {said[:60]!r} of which part of the file it sends.")
            begins = int(place[1])
            if part.done and (reply.status == 200 or begins != part.done):
                part.forget()  # the server knows no ranges, or has another version of the file by now
            if reply.status == 206 and begins != part.done:
                raise GoneAwayError(f"The server sends the file from byte {begins} on, which was not asked for.")
            announced = reply.headers.get("Content-Length", "")
            if SIZE.fullmatch(announced) and part.done + int(announced) != remote.size_bytes:
                part.forget()
                raise GoneAwayError("The file on the server has another size by now; it is begun again.")
            is_too_much = False
            with part.receiving() as pieces:
                for chunk in reply.chunks():
                    is_too_much = part.done + len(chunk) > remote.size_bytes
                    if is_too_much:
                        break
                    pieces.put(chunk)
                    part.done += len(chunk)
                    on_progress(part.done, remote.size_bytes)
            if is_too_much:
                part.forget()
                raise DownloadError(
                    f"{remote.name}: the server sends more than the {remote.size_bytes} bytes that it announced."
                )
    if part.done < remote.size_bytes:
        raise GoneAwayError(f"The server ended after {part.done} of {remote.size_bytes} bytes.")
    return part.end()


def _hash_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
        known, part = noted(note), note.with_name(f".{name}{PART_SUFFIX}")
        if known is not None and part.is_file():
            found.append(Unfinished(folder, name, known.url, part.stat().st_size, known.size_bytes))
    return found


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
