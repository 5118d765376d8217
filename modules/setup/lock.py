"""One set-up at a time: a lock file that the operating system releases when its holder dies, however it dies."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from modules.setup.process import Say, SetupError

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[str]) -> bool:
        file.seek(1 << 20)  # a byte far behind the text: Windows forbids others to read locked bytes
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(file: IO[str]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def exclusive(
    path: Path, say: Say, wait_seconds: float = 3600.0, sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Hold the lock file `path` (its folder is made); waits for another holder and says so once.

    The file holds the holder's process number for the message only: a file left by a dead process is not locked.
    Raises `SetupError` after `wait_seconds`, or if the folder cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="ascii")
    except OSError as error:
        raise SetupError(
            f"{path.parent} cannot be written to ({error.strerror}): run this as the user who owns the folder, or "
            "give --skip-install if everything is installed already."
        ) from error
    with file:
        deadline = time.monotonic() + wait_seconds
        waiting = False
        while not _try_lock(file):
            file.seek(0)
            holder = f"another launch (process {file.read().strip() or 'unknown'}) is setting up"
            if time.monotonic() > deadline:
                raise SetupError(f"{holder} and does not finish: end it, then run the same command again.")
            if not waiting:
                say(f"{holder}; waiting for it")
                waiting = True
            sleep(0.2)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield  # closing the file releases the lock
