"""Taking folders of images into the history, in the background: can be stopped at any moment and goes on where it was.

A file that is known, by its path, size and time, is passed over, so that a second look costs little. One whose
contents are known under a path where no file is any more has been moved, and its entry follows it.
"""

import logging
import os
import stat
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from modules.errors import FeatherweightError, InvalidValueError
from modules.history.store import History, ImageFile
from modules.history.thumbnails import Thumbnails
from modules.images.metadata import read_metadata
from modules.images.reading import MAX_PIXELS
from modules.system.atomic_files import fingerprint
from modules.system.threads import start_loop

log = logging.getLogger(__name__)

ENDINGS = frozenset((".png", ".jpg", ".jpeg", ".webp", ".avif"))
BATCH = 200  # files in one transaction
MAX_NAMED = 5  # of the files that could not be read
RUNNING, DONE, STOPPED, FAILED = "running", "done", "stopped", "failed"


class Importer:
    """Imports folders one by one in a thread of its own. `start()` goes on with what an earlier program left."""

    def __init__(self, history: History, thumbnails: Thumbnails) -> None:
        self._history = history
        self._thumbnails = thumbnails
        self._condition = threading.Condition()
        self._waiting: deque[Path] = deque()
        self._stop = threading.Event()  # the folder that is read now
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Go on with imports that were not finished."""
        for item in self._history.imports.all():
            if item["state"] == RUNNING:
                try:
                    self.add(Path(item["folder"]))
                except FeatherweightError as error:  # the folder is no longer there
                    self._note_failure(Path(item["folder"]), str(error))

    def add(self, folder: Path) -> None:
        """Import a folder and all below. Raises `InvalidValueError` for what is no folder."""
        folder = folder.expanduser().absolute()
        if not folder.is_dir():
            raise InvalidValueError(f"{folder} is not a folder on this machine. Give the full path of one with images.")
        self._history.imports.note(folder, RUNNING, {})
        with self._condition:
            if folder not in self._waiting:
                self._waiting.append(folder)
            if self._thread is None:
                self._thread = start_loop("featherweight-import", self._work)
            self._condition.notify_all()

    def stop(self) -> None:
        """Stop what is being imported; what was taken in stays."""
        with self._condition:
            waiting = list(self._waiting)
            self._waiting.clear()
            self._stop.set()
        for folder in waiting:
            self._history.imports.note(folder, STOPPED, {})

    def close(self) -> None:
        """End the thread; the next program goes on."""
        with self._condition:
            self._closing = True
            self._stop.set()
            self._condition.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(5.0)

    def wait(self, timeout_s: float) -> bool:
        """Block until nothing is imported any more; False when the timeout came first."""
        until = time.monotonic() + timeout_s
        while any(item["state"] == RUNNING for item in self._history.imports.all()):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def _work(self) -> bool:
        with self._condition:
            while not self._waiting and not self._closing:
                self._condition.wait()
            if self._closing:
                return False
            folder = self._waiting.popleft()
            self._stop.clear()
        try:
            self._import(folder)
        except FeatherweightError as error:
            log.warning("The import of %s failed: %s", folder, error)
            self._note_failure(folder, str(error))
        except BaseException as error:
            log.exception("The import of %s failed", folder)
            self._note_failure(folder, f"{type(error).__name__}: {error}")
        return True

    def _note_failure(self, folder: Path, reason: str) -> None:
        try:
            self._history.imports.note(folder, FAILED, {}, reason)
        except FeatherweightError as error:  # the next start tries the folder again
            log.warning("That could not be recorded: %s", error)

    def _import(self, folder: Path) -> None:
        counts: Counter[str] = Counter(files=0, added=0, known=0, moved=0, copies=0, skipped=0)
        batch: list[ImageFile] = []
        left_out: list[str] = []
        for path in _files(folder):
            if self._stop.is_set():
                break
            counts["files"] += 1
            file = self._look(path, counts, left_out)
            if file is not None:
                batch.append(file)
            if len(batch) >= BATCH or counts["files"] % (BATCH * 10) == 0:
                self._write(folder, batch, counts)
        self._write(folder, batch, counts)
        if not self._closing:
            state = STOPPED if self._stop.is_set() else DONE
            self._history.imports.note(folder, state, dict(counts), _named(left_out, folder))
        self._make_thumbnails(folder)

    def _make_thumbnails(self, folder: Path) -> None:
        """Make those of a folder that are not there yet, so that no page has to wait for them; others are made when
        they are looked at."""
        for entry in self._history.below(folder):
            if self._stop.is_set() or self._waiting:
                return
            try:
                self._thumbnails.of(entry.fingerprint, entry.path)
            except Exception as error:
                log.debug("No thumbnail of %s: %s: %s", entry.path, type(error).__name__, error)

    def _write(self, folder: Path, batch: list[ImageFile], counts: Counter[str]) -> None:
        counts["added"] += self._history.add(batch)
        batch.clear()
        self._history.imports.note(folder, RUNNING, dict(counts))

    def _look(self, path: Path, counts: Counter[str], left_out: list[str]) -> ImageFile | None:
        """Read what there is to take in of a file; None for one that is known, and for one that cannot be read, whose
        path goes to `left_out`."""
        try:
            facts = path.stat()
            if not stat.S_ISREG(facts.st_mode):  # opening a pipe would wait for ever
                raise ValueError("it is no file")
            if self._history.known(path) == (facts.st_size, facts.st_mtime):
                counts["known"] += 1
                return None
            with Image.open(path) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError("it is too large")
                size = image.size
                infotext, _ = read_metadata(image)
            found = fingerprint(path)
        except Exception as error:  # whatever a file holds, the others are taken in
            log.info("%s is not taken into the history: %s: %s", path, type(error).__name__, error)
            counts["skipped"] += 1
            left_out.append(str(path))
            return None
        for entry in self._history.same_contents(found):
            if entry.path == path:
                continue
            if entry.path.exists() or entry.trashed_from is not None:
                counts["copies"] += 1
            else:
                self._history.moved(entry.id, path)
                counts["moved"] += 1
            return None
        return ImageFile(
            path=path,
            fingerprint=found,
            width=size[0],
            height=size[1],
            size_bytes=facts.st_size,
            changed_at=facts.st_mtime,
            infotext=infotext or "",
            created_at=facts.st_mtime,
        )


def _named(left_out: list[str], folder: Path) -> str | None:
    """A sentence that names the first files that could not be read; None without any."""
    if not left_out:
        return None
    names = ", ".join(str(Path(path).relative_to(folder)) for path in left_out[:MAX_NAMED])
    more = f" and {len(left_out) - MAX_NAMED} others" if len(left_out) > MAX_NAMED else ""
    return f"These could not be read: {names}{more}. The log says why."


def _files(folder: Path) -> Iterator[Path]:
    """Image files of a folder and all below, in order; hidden ones and the trash left out, links not followed."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "trash")
        for name in sorted(names):
            if Path(name).suffix.lower() in ENDINGS and not name.startswith("."):
                yield Path(place) / name
