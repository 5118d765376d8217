"""One server per data folder: a lock that ends with the process, however that ends."""

import os
import sys
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


def _locked(file: BinaryIO) -> bool:
    """Take the lock without waiting; False when another process has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(4096)  # beyond the text, which stays readable
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            file.seek(0)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        import errno

        # File systems that know no locks (some network shares) are used without one.
        return error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
    return True
