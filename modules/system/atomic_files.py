"""Writing files so that a crash, a full disk or a second writer never leaves half a file or loses the old one."""

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from modules.errors import OutputError

_REASONS = {
    errno.ENOSPC: ("the disk is full", "Free some space, or choose another folder in Settings > Paths for saving."),
    errno.EDQUOT: ("the disk quota is used up", "Free some space, or choose another folder."),
    errno.EFBIG: ("the file is too large for this file system", "Choose a folder on another disk."),
    errno.EROFS: ("the disk is read-only", "Choose another folder in Settings > Paths for saving."),
    errno.EACCES: ("writing there is not permitted", "Change the folder's permissions or choose another folder."),
    errno.EPERM: ("writing there is not permitted", "Change the folder's permissions or choose another folder."),
    errno.ENAMETOOLONG: ("the name is too long", "Shorten the filename or directory pattern in the settings."),
    errno.ENOTDIR: ("a part of the path is a file", "Remove that file or choose another folder."),
    errno.EEXIST: ("a file of that name is in the way", "Remove that file or choose another folder."),
}

FINGERPRINT_BYTES = 64 * 1024


def output_error(what: str, folder: Path, error: OSError) -> OutputError:
    """The error for a file that could not be written: what, where, why, and what to do about it."""
    reason, remedy = _REASONS.get(
        error.errno or 0, (error.strerror or str(error), "Check the folder or choose another one.")
    )
    return OutputError(f"{what} could not be saved in {folder}: {reason}. {remedy}")


def write_atomic(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replace `path` by `data` in one step: a temporary file next to it, flushed to disk, then renamed. `mode`: the
    permissions that the file has from its first moment on, for secrets; None: the usual ones.

    Makes the folder if needed. If anything fails the old file stays and no temporary file is left. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        write_and_sync(temporary, data, mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_and_sync(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write `data` to a file and wait until it is on the disk; `mode` as for `write_atomic`. Raises OSError."""
    with open(path, "wb", opener=None if mode is None else partial(os.open, mode=mode)) as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def fingerprint(path: Path) -> str:
    """Return what tells a file's contents from all others without reading a large one in full: a hash of its size, its
    first and its last 64 KiB. Raises OSError."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        head = stream.read(FINGERPRINT_BYTES)
        stream.seek(max(size - FINGERPRINT_BYTES, 0))
        return _fingerprint(size, head, stream.read(FINGERPRINT_BYTES))


def fingerprint_of(data: bytes) -> str:
    """The `fingerprint` that a file of this data has."""
    return _fingerprint(len(data), data[:FINGERPRINT_BYTES], data[-FINGERPRINT_BYTES:])


def _fingerprint(size_bytes: int, head: bytes, tail: bytes) -> str:
    return hashlib.sha256(b"%d\n" % size_bytes + head + tail).hexdigest()


def keep_aside(path: Path) -> Path:
    """Rename a damaged file or folder to the first free `NAME.corrupt-N` next to it. Raises OSError."""
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    path.replace(aside)
    return aside


def rename_without_replacing(source: Path, target: Path) -> None:
    """Give `source` the name `target` in the same folder; raises FileExistsError if that name is taken.

    A hard link does both checks in one step. File systems without links (FAT, some network shares) reserve the name
    with an empty file first.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES):
            raise
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        source.replace(target)
    else:
        source.unlink()


def move_whole(source: Path, target: Path) -> None:
    """Move a file, a folder or a link itself to a name that is free, also to another disk: then it is copied first,
    and the source leaves its place only when the copy is whole. Raises OSError, FileExistsError for a name that is
    taken; then the source is where it was.
    """
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    try:
        source.rename(target)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    token = secrets.token_hex(4)
    copied, gone = (path.with_name(f".{path.name}.{token}.moving") for path in (target, source))
    try:
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, copied, symlinks=True)
        else:
            shutil.copy2(source, copied, follow_symlinks=False)
        source.rename(gone)
        try:
            copied.rename(target)
        except BaseException:
            gone.rename(source)
            raise
    except BaseException:
        remove_own(copied)
        raise
    remove_own(gone)


def move_together(moves: Sequence[tuple[Path, Path]]) -> None:
    """Do all moves, each as `move_whole`, in their order; if one fails, take back those before it. Raises OSError."""
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in moves:
            move_whole(source, target)
            done.append((source, target))
    except BaseException:
        for source, target in reversed(done):
            move_whole(target, source)
        raise


def remove_own(path: Path) -> None:
    """Delete a file, a folder or a link itself that this program made, if it is there. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename durable. Only POSIX lets a folder be opened for this; elsewhere the rename is durable enough."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
