"""Images that the page has sent for a form, kept by the hash of their pixels until they are no longer used."""

import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from modules.errors import InvalidValueError, OutputError
from modules.images.encode import encode_image
from modules.images.reading import read_image
from modules.processing.request.source_images import SourceImage
from modules.system.paths import Paths

KEPT_S = 7 * 86400  # since an image was last sent or used
LOOK_EVERY_S = 3600.0
_KEY = re.compile(r"[0-9a-f]{64}")
_MODES = ("L", "LA", "RGB", "RGBA")


@dataclass(frozen=True)
class Upload:
    """An image that was taken in: upright, in 8 bits a channel."""

    key: str  # sha256 of its pixels
    size_px: tuple[int, int]


class Uploads:
    """A folder of PNG files by content. The page keeps the key of an image over a reload, and sends the key with the
    form instead of the image."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._looked_at = 0.0

    @classmethod
    def of(cls, paths: Paths) -> "Uploads":
        """Return those of the program, below its cache folder."""
        return cls(paths.cache_dir / "images")

    def add(self, data: bytes, what: str = "The image") -> Upload:
        """Take in a file. Raises `InvalidValueError`, beginning with `what`, for anything that is no image or too
        large, and `OutputError` where it cannot be written."""
        image = read_image(data, what)
        image.info = {}
        source = SourceImage.of(image if image.mode in _MODES else _plain(image))
        path = self._path(source.sha256)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_old()
            if path.exists():
                os.utime(path)
            else:
                part = path.with_suffix(f".{secrets.token_hex(4)}.part")
                part.write_bytes(encode_image(source.image, "png"))
                part.replace(path)
        except OSError as error:
            raise OutputError(
                f"{what} could not be kept in {self._folder}: {error.strerror}. Free some space there, or start with "
                "another --data-dir."
            ) from error
        return Upload(source.sha256, source.image.size)

    def path(self, key: str, what: str = "The image") -> Path:
        """The PNG file of an image. Raises `InvalidValueError` for one that is no longer kept."""
        path = self._path(key)
        if not _KEY.fullmatch(key) or not path.is_file():
            raise InvalidValueError(f"{what} is no longer kept by the server; put it into the form again.")
        return path

    def image(self, key: str, what: str = "The image") -> Image.Image:
        """The image itself; it is kept longer for having been used. Raises as `path`."""
        path = self.path(key, what)
        os.utime(path)
        return read_image(path, what)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.png"

    def _remove_old(self) -> None:
        now = time.time()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # another page may have removed it
                if now - path.stat().st_mtime > KEPT_S:
                    path.unlink()


def _plain(image: Image.Image) -> Image.Image:
    """Palettes and two colors as RGB; more than 8 bits and other color models are left to `SourceImage`."""
    return image.convert("RGB") if image.mode in ("1", "P") else image
