"""Taking the sha256 of checkpoints next to other work, so that no image waits for it before it is made. Imports no
torch."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo

log = logging.getLogger(__name__)


class _StoppedError(Exception):
    """The program ends; what was read so far is of no use."""


@dataclass(frozen=True)
class HashProgress:
    """A sum that is being taken: of which checkpoint, and how far (0 to 1)."""

    name: str
    fraction: float


class BackgroundHasher:
    """Each checkpoint is read once, in a thread of its own; one file at a time, so that disks are read in order."""

    def __init__(
        self, catalogue: CheckpointCatalogue, on_done: Callable[[CheckpointInfo], object] = lambda info: None
    ) -> None:
        """`on_done` is called in the thread with every checkpoint whose sum was taken."""
        self._catalogue = catalogue
        self._on_done = on_done
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._running: dict[tuple[Path, int, int], Future[CheckpointInfo]] = {}
        self._progress: HashProgress | None = None
        self._stopped = threading.Event()

    @property
    def progress(self) -> HashProgress | None:
        """The sum that is being taken now; None: none is."""
        return self._progress

    def begin(self, info: CheckpointInfo) -> None:
        """Begin to take a checkpoint's sum, unless it is known or on its way; returns at once."""
        if info.sha256 is None and not self._stopped.is_set():
            self._future(info)

    def finish(self, info: CheckpointInfo) -> CheckpointInfo:
        """The checkpoint with its sha256, after waiting for it; without one when its file cannot be read any more."""
        if info.sha256 is not None or self._stopped.is_set():
            return info
        return self._future(info).result()

    def close(self) -> None:
        """Stop reading; who waits gets a checkpoint without a sum."""
        self._stopped.set()

    def _future(self, info: CheckpointInfo) -> Future[CheckpointInfo]:
        key = (info.path, info.size_bytes, info.mtime_ns)
        with self._lock:
            future = self._running.get(key)
            if future is None:
                future = self._running[key] = Future()
                name = f"featherweight-hash-{info.path.name}"
                threading.Thread(target=self._take, args=(key, info, future), name=name, daemon=True).start()
            return future

    def _take(self, key: tuple[Path, int, int], info: CheckpointInfo, future: Future[CheckpointInfo]) -> None:
        def tell(read_bytes: int) -> None:
            if self._stopped.is_set():
                raise _StoppedError
            self._progress = HashProgress(info.name, min(read_bytes / max(info.size_bytes, 1), 1.0))

        found = info
        try:
            with self._turn:
                found = self._catalogue.with_hash(info, tell)
        except OSError as error:
            log.warning("%s has no hash: it cannot be read (%s).", info.name, error)
        except _StoppedError:
            log.info("The hash of %s was not finished.", info.name)
        except Exception:
            log.exception("%s has no hash", info.name)
        finally:
            self._progress = None
            with self._lock:
                self._running.pop(key, None)
            future.set_result(found)
        if found.sha256:
            self._on_done(found)
