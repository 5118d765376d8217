"""Threads that do something with each piece of a stream while the next ones come: hashing, writing to disk."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import BinaryIO

WAITING = 12
"""Lots of pieces that may wait; with `LOT_BYTES` this bounds the memory."""
LOT_BYTES = 1 << 20
SYNC_BYTES = 64 << 20
"""So much is written before it is put onto the disk: otherwise all of it would have to wait for that at the end."""

Lot = list[bytes]


class Follower:
    """A thread that hands each piece to `work`, in their order. At the end of its `with` block all that was `put` is
    done, also where the block ended by an error; an error of the work itself is raised by `put`, or at the end."""

    def __init__(self, work: Callable[[bytes], object]) -> None:
        self._work = work
        self._lots: queue.Queue[Lot | None] = queue.Queue(WAITING)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="featherweight-download", daemon=True)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def put(self, lot: Lot) -> None:
        """The next pieces; waits while too many wait. Raises the error that the work has met."""
        if self._error is not None:
            raise self._error
        self._lots.put(lot)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lots.put(None)
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        while (lot := self._lots.get()) is not None:
            if self._error is not None:
                continue  # whoever puts must not wait for ever
            try:
                for piece in lot:
                    self._work(piece)
            except Exception as error:  # raised again where the pieces come from
                self._error = error


class Pieces:
    """Hands pieces to several followers in lots; used as a `with` block around the loop over the pieces."""

    def __init__(self, *work: Callable[[bytes], object]) -> None:
        self._followers = [Follower(one) for one in work]
        self._lot: Lot = []
        self._lot_bytes = 0

    def __enter__(self) -> Pieces:
        for one in self._followers:
            one.__enter__()
        return self

    def put(self, piece: bytes) -> None:
        """The next piece."""
        self._lot.append(piece)
        self._lot_bytes += len(piece)
        if self._lot_bytes >= LOT_BYTES:
            self._hand_on()

    def _hand_on(self) -> None:
        lot, self._lot, self._lot_bytes = self._lot, [], 0
        for one in self._followers:
            one.put(lot)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed: BaseException | None = error
        try:
            self._hand_on()
        except Exception as found:
            failed = failed or found
        for one in self._followers:
            try:
                one.__exit__(type(failed) if failed else None, failed, trace)
            except Exception as found:
                failed = failed or found
        if failed is not None and error is None:
            raise failed


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
