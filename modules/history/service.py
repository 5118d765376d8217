"""The history of one running program: the record, its thumbnails and imports, and what the queue tells it."""

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from modules.atomic_files import fingerprint
from modules.errors import FeatherweightError
from modules.history.importing import Importer
from modules.history.store import History
from modules.history.thumbnails import Thumbnails, small_copy
from modules.processing.record.result import GeneratedImage

log = logging.getLogger(__name__)

MAX_PENDING = 64  # images that wait for their thumbnails; more are made when they are looked at


@dataclass
class HistoryService:
    """An `ImageListener` of the queue. Thumbnails of new images are made in a thread, alongside the next image."""

    history: History
    thumbnails: Thumbnails
    importer: Importer
    _pending: deque[GeneratedImage] = field(default_factory=deque)
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
            if len(self._pending) < MAX_PENDING:
                self._pending.append(image)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="featherweight-thumbnails", daemon=True)
                self._thread.start()
            self._condition.notify()

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

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._pending and not self._closing:
                    self._condition.wait()
                if self._closing:
                    return
                image = self._pending.popleft()
            assert image.path is not None
            try:
                self.thumbnails.keep(fingerprint(image.path), small_copy(image.image))
            except (OSError, ValueError, FeatherweightError) as error:
                log.info("No thumbnail of %s: %s", image.path.name, error)
