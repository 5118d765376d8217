"""The image of a card: a file next to the model, or one inside of its metadata. Nothing outside of the model folders
is ever read."""

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image

from modules.adapters.catalogue import EMBEDDED
from modules.errors import UnknownNameError
from modules.models.files.diffusers_folder import sibling_file
from modules.system.atomic_files import output_error, write_atomic
from modules.system.bounded import read_json
from modules.system.model_folders import Near, inside

MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".avif": "image/avif",
}
ENDINGS = (*(f".preview{suffix}" for suffix in MEDIA_TYPES), *MEDIA_TYPES)
"""What follows the model's name. One that was chosen on the page (`.preview.png`) goes before all others."""

_FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
_UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)


@dataclass(frozen=True)
class Preview:
    """Bytes of an image and their media type."""

    data: bytes
    media_type: str


def find_preview(near: Near) -> os.DirEntry[str] | None:
    """The preview file next to a model file."""
    return near.find(*ENDINGS)


def read_preview(path: Path, roots: Iterable[Path]) -> Preview:
    """A preview file. Raises `UnknownNameError` if it is missing, or a link to somewhere outside of `roots`."""
    real = inside(path, roots)
    if real is None or path.suffix.lower() not in MEDIA_TYPES:
        raise UnknownNameError(f"There is no preview {path.name}. Refresh the cards.")
    return Preview(real.read_bytes(), MEDIA_TYPES[path.suffix.lower()])


def embedded_preview(metadata: Mapping[str, str]) -> Preview | None:
    """The first image in a file's metadata, if there is one that can be read."""
    for text in _embedded_texts(metadata):
        try:
            data = base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
            with Image.open(BytesIO(data)) as image:
                found = _FORMATS.get(image.format or "")
        except (*_UNREADABLE, binascii.Error):
            continue
        if found:
            return Preview(data, found)
    return None


def write_preview(path: Path, png: bytes) -> Path:
    """Make this PNG the preview of a model file: NAME.preview.png, replaced in one step. Raises `OutputError`."""
    file = sibling_file(path, ".preview.png")
    try:
        write_atomic(file, png)
    except OSError as error:
        raise output_error(f"The preview {file.name}", file.parent, error) from error
    return file


def _embedded_texts(metadata: Mapping[str, str]) -> list[str]:
    texts = []
    covers, thumbnail = (metadata.get(key) for key in EMBEDDED)
    if covers:
        try:
            found = read_json(covers)
        except ValueError:
            found = []
        texts += [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
    return [*texts, thumbnail] if thumbnail else texts
