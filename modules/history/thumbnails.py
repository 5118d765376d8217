"""Small copies of images for the page, by the fingerprint of the file: kept where a file moves, made when asked for."""

import logging
import sqlite3
import threading
from io import BytesIO
from pathlib import Path

from PIL import Image

from modules.images.reading import open_image, turn_of

log = logging.getLogger(__name__)

SIDE_PX = 256
QUALITY = 85
JPEG_START = b"\xff\xd8"


class Thumbnails:
    """One file of small images; losing it costs nothing but time. `path` None keeps it in memory."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        try:
            self._db = _connect(path)
        except sqlite3.DatabaseError as error:
            assert path is not None
            log.warning("The thumbnails (%s) are begun again: %s", path, error)
            path.unlink(missing_ok=True)
            self._db = _connect(path)

    def of(self, fingerprint: str, path: Path) -> bytes:
        """At most 256 pixels a side, see `small_copy`. Raises `InvalidValueError` for a file that is missing or no
        image."""
        found = self.kept(fingerprint)
        if found is None:
            found = small_copy(open_image(path, path.name, enough_px=2 * SIDE_PX))
            self.keep(fingerprint, found)
        return found

    def kept(self, fingerprint: str) -> bytes | None:
        """One that was made before."""
        with self._lock:
            row = self._db.execute("SELECT data FROM thumbnails WHERE fingerprint = ?", (fingerprint,)).fetchone()
        return bytes(row[0]) if row else None

    def keep(self, fingerprint: str, data: bytes) -> None:
        """Keep one; a disk that takes nothing costs time at the next look."""
        try:
            with self._lock, self._db:
                self._db.execute("INSERT OR REPLACE INTO thumbnails VALUES (?, ?)", (fingerprint, data))
        except sqlite3.Error as error:
            log.warning("A thumbnail could not be kept: %s", error)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def small_copy(image: Image.Image) -> bytes:
    """An image, upright, as a small JPEG, which takes a tenth of the time of a WebP; as a WebP where parts are
    transparent."""
    has_alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    plain = image if image.mode in ("RGB", "RGBA") else image.convert("RGBA" if has_alpha else "RGB")
    scale = SIDE_PX / max(image.size)
    size = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    # Made small before it is turned: what reads the whole image once more takes longer than all the rest.
    small = plain.resize(size, Image.Resampling.BICUBIC, reducing_gap=1.0) if scale < 1 else plain.copy()
    turn = turn_of(image)
    small = small if turn is None else small.transpose(turn)
    data = BytesIO()
    if small.mode == "RGBA":
        small.save(data, "WEBP", quality=QUALITY, method=0)
    else:
        small.save(data, "JPEG", quality=QUALITY)
    return data.getvalue()


def media_type_of(thumbnail: bytes) -> str:
    """Return the media type of a small copy; earlier versions made WebPs of all images."""
    return "image/jpeg" if thumbnail.startswith(JPEG_START) else "image/webp"


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(str(path) if path else ":memory:", timeout=5.0, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=OFF")
        db.execute("CREATE TABLE IF NOT EXISTS thumbnails (fingerprint TEXT PRIMARY KEY, data BLOB NOT NULL)")
        db.commit()
    except BaseException:
        db.close()
        raise
    return db
