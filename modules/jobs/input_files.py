"""The images that queued jobs begin with: files next to the record, named by their contents, gone with their jobs."""

import logging
import re
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from modules.errors import InvalidValueError, OutputError
from modules.processing.request.source_images import SourceImage
from modules.system.atomic_files import output_error, write_atomic

log = logging.getLogger(__name__)

PREFIX = "file:"
NAME = re.compile(r"[0-9a-f]{64}")


class InputFiles:
    """Images in `folder`, one file for equal ones. Without a folder they are in the record itself, as text."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def text_of(self, image: SourceImage) -> str:
        """Return what the record says instead of an image; its file is written first. Raises `OutputError`."""
        if self.folder is None:
            return image.to_text()
        path = self.folder / f"{image.sha256}.png"
        if not path.exists():
            data = BytesIO()
            image.image.save(data, "PNG")
            try:
                write_atomic(path, data.getvalue())
            except OSError as error:
                raise output_error("An image that the job begins with", self.folder, error) from error
        return f"{PREFIX}{image.sha256}"

    def image_of(self, text: str) -> SourceImage:
        """The inverse of `text_of`. Raises `InvalidValueError` for a file that is missing or holds something else."""
        if not text.startswith(PREFIX):
            return SourceImage.from_text(text)
        name = text.removeprefix(PREFIX)
        if self.folder is None or not NAME.fullmatch(name):
            raise InvalidValueError(f"The record of the job names no image ({text[:80]!r}). Submit the job again.")
        try:
            with Image.open(self.folder / f"{name}.png") as file:
                file.load()
                found = SourceImage.of(file.copy())
        except OSError as error:
            raise InvalidValueError(
                f"The image {name[:12]}.png that the job begins with cannot be read ({error}). Submit the job again."
            ) from error
        if found.sha256 != name:
            raise InvalidValueError(
                f"The image {name[:12]}.png is another one than was submitted. Submit the job again."
            )
        return found

    def remove(self, names: Iterable[str]) -> None:
        """Delete files that no job names any more."""
        for name in names:
            self._unlink(name)

    def keep_only(self, names: set[str]) -> None:
        """Delete all files but these: what a killed program left behind."""
        if self.folder is None or not self.folder.is_dir():
            return
        for path in self.folder.glob("*.png"):
            if path.stem not in names:
                self._unlink(path.stem)

    def _unlink(self, name: str) -> None:
        if self.folder is None or not NAME.fullmatch(name):
            return
        try:
            (self.folder / f"{name}.png").unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s", OutputError(f"The image {name}.png of an ended job could not be deleted: {error}"))


def names_in(record: Any) -> set[str]:
    """The files that the JSON of a request names."""
    if isinstance(record, str):
        name = record.removeprefix(PREFIX)
        return {name} if record.startswith(PREFIX) and NAME.fullmatch(name) else set()
    if isinstance(record, dict):
        record = list(record.values())
    return set().union(*(names_in(item) for item in record)) if isinstance(record, list) else set()
