"""The history of one running program: the record, its thumbnails and imports, and what the queue tells it."""

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from modules.errors import BusyError, OutputError
from modules.history.importing import Importer
from modules.history.store import History
from modules.history.thumbnails import Thumbnails, small_copy
from modules.processing.request.result import GeneratedImage
from modules.system.atomic_files import fingerprint
from modules.system.threads import start_loop

log = logging.getLogger(__name__)

MAX_HELD = 64  # images in memory that wait for their thumbnails; others are read again from their files
LATE_RETRY_S = 2.0  # how often images are written again that the history did not take
MAX_PENDING = 10_000  # more are made when they are looked at


@dataclass
class HistoryService:
    """An `ImageListener` of the queue. Thumbnails of new images are made in a thread, while the next image is made."""

    history: History
    thumbnails: Thumbnails
    importer: Importer
    _pending: deque[tuple[Path, Image.Image | None]] = field(default_factory=lambda: deque(maxlen=MAX_PENDING))
    _condition: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _closing: bool = False

    @classmethod
    def open(cls, file: Path | None, thumbnails: Path | None, trash: Path) -> "HistoryService":
        """Open or begin the files. Raises `OutputError`."""
        history = History(file, trash)
        small = Thumbnails(thumbnails)
        return cls(history, small, Importer(history, small))

    def finished(self, task_id: str, user: str, image: GeneratedImage) -> None:
        """See `ImageListener`."""
        self.history.finished(task_id, user, image)
        if image.path is None:
            return
        with self._condition:
            self._pending.append((image.path, image.image if len(self._pending) < MAX_HELD else None))
            if self._thread is None:
                self._thread = start_loop("featherweight-thumbnails", self._work)
            self._condition.notify()

    def saved_late(self, task_id: str, user: str, image: GeneratedImage, before: Path | None) -> None:
        """See `ImageListener`."""
        try:
            if before is not None and image.path is not None and self.history.file_moved(before, image.path):
                return
        except (OutputError, BusyError) as error:
            log.warning("%s is in the history where it was kept before: %s", image.path, error)
            return
        self.finished(task_id, user, image)

    def close(self) -> None:
        """End the threads and close the files."""
        with self._condition:
            self._closing = True
            self._condition.notify()
            thread = self._thread
        self.importer.close()
        if thread is not None:
            thread.join(2.0)
        self.history.close()
        self.thumbnails.close()

    def _work(self) -> bool:
        with self._condition:
            while not self._pending and not self._closing and not self.history.is_behind:
                self._condition.wait()
            if self._closing:
                return False
            if not self._pending:
                self._condition.wait(LATE_RETRY_S)
            path, image = self._pending.popleft() if self._pending else (None, None)
        self.history.take_late()
        if path is None:
            return True
        try:
            if image is None:
                self.thumbnails.of(fingerprint(path), path)
            else:
                self.thumbnails.keep(fingerprint(path), small_copy(image))
        except Exception as error:
            log.info("No thumbnail of %s: %s: %s", path, type(error).__name__, error)
        return True
