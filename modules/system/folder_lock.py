"""Locks between processes that end with their process, however that ends: one server per data folder, and one writer
per file."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from modules.errors import BusyError, OutputError

NAME = "server.lock"


class FolderLock:
    """Holds the lock of a folder until `close`. The file stays; what counts is the lock on it, which the system takes
    away from a dead process."""

    def __init__(self, folder: Path, address: str) -> None:
        """Raises `BusyError` naming who holds it, `OutputError` when the file cannot be written."""
        path = folder / NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        except OSError as error:
            raise OutputError(
                f"{path} cannot be written: {error.strerror}. Choose a writable folder with --data-dir."
            ) from error
        if not _locked(self._file):
            holder = self._file.read(200).decode("utf-8", "replace").strip() or "another process"
            self._file.close()
            raise BusyError(
                f"A server uses the data folder {folder} already ({holder}). Use that one, or start this one with "
                "another --data-dir."
            )
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()}, {address}\n".encode())
        self._file.flush()

    def close(self) -> None:
        """Let another server in."""
        self._file.close()


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """While open, no other process or thread is in here for the same file: each waits for its turn to read, change and
    replace it. The lock is on `NAME.lock` next to it, which stays. Raises OSError where that cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("ab") as file:
        _locked(file, waits=True)
        yield


def _locked(file: BinaryIO, *, waits: bool = False) -> bool:
    """Take the lock; False when another process has it and this one does not wait."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(4096)  # beyond the text, which stays readable
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if waits else msvcrt.LK_NBLCK, 1)
            file.seek(0)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        import errno

        # File systems that know no locks (some network shares) are used without one.
        return error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
    return True
