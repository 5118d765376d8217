"""Threads that do something with each piece of a stream while the next ones come: hashing, writing to disk."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

WAITING = 12
"""Lots of pieces that may wait for each thread; with `LOT_BYTES` this bounds the memory."""
LOT_BYTES = 1 << 20
SYNC_BYTES = 64 << 20
"""So much is written before it is put onto the disk: otherwise all of it would have to wait for that at the end."""


class Pieces:
    """A thread for each `work`, which does it with each piece, in their order; a `with` block around the loop over the
    pieces. At its end all that was `put` is done, also where it ended by an error. An error of the work ends all work
    and is raised by `put`, or at the end."""

    def __init__(self, *work: Callable[[bytes], object]) -> None:
        self._threads = [(one, ThreadPoolExecutor(1, "featherweight-download")) for one in work]
        self._waiting: deque[Future[None]] = deque()
        self._has_failed = False
        self._lot: list[bytes] = []
        self._lot_bytes = 0

    def __enter__(self) -> Pieces:
        return self

    def put(self, piece: bytes) -> None:
        """Hand on the next piece; wait while too many wait."""
        self._lot.append(piece)
        self._lot_bytes += len(piece)
        if self._lot_bytes >= LOT_BYTES:
            self._hand_on()

    def _hand_on(self, leaves: int = WAITING) -> None:
        lot, self._lot, self._lot_bytes = self._lot, [], 0
        self._waiting.extend(thread.submit(self._do, work, lot) for work, thread in self._threads)
        while self._waiting and (len(self._waiting) > leaves * len(self._threads) or self._waiting[0].done()):
            self._waiting.popleft().result()

    def _do(self, work: Callable[[bytes], object], lot: list[bytes]) -> None:
        try:
            for piece in lot if not self._has_failed else ():
                work(piece)
        except BaseException:
            self._has_failed = True  # what follows a piece that was not written must not be written either
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._hand_on(leaves=0)
        except Exception:
            if error is None:  # that of the block says more
                raise
        finally:
            for _, thread in self._threads:
                thread.shutdown()


class SyncedFile:
    """Writes pieces to a file and puts them onto the disk from time to time."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._unsynced = 0

    def write(self, piece: bytes) -> None:
        """Append a piece. Raises OSError."""
        self._stream.write(piece)
        self._unsynced += len(piece)
        if self._unsynced >= SYNC_BYTES:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._unsynced = 0
