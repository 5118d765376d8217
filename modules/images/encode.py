"""Images to bytes and base64 and back: for files, the API and the page."""

import base64
import binascii
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from PIL import Image

from modules.errors import InvalidValueError
from modules.images.metadata import exif_bytes, fits_jpeg, png_info
from modules.images.reading import MAX_PIXELS, in_8_bits, read_image
from modules.settings.values import Settings

log = logging.getLogger(__name__)

FORMATS = {"png": "PNG", "jpg": "JPEG", "jpeg": "JPEG", "webp": "WEBP", "avif": "AVIF", "gif": "GIF"}
"""File name extensions and Pillow's names of their formats."""

MAX_SIDE_PX = {"JPEG": 65_535, "WEBP": 16_383, "AVIF": 65_535}
"""Longest side that a format can hold, where that is less than we make."""

_MODES = {
    "PNG": ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"),
    "JPEG": ("RGB", "L"),
    "WEBP": ("RGB", "RGBA"),
    "AVIF": ("RGB", "RGBA"),
    "GIF": ("RGB", "RGBA", "L", "P"),
}
_DATA_URI = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w.+-]+=[^;,]*)*;base64,", re.IGNORECASE)
_BLANKS = str.maketrans("", "", " \t\r\n")


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How lossy formats are written."""

    quality: int = 80  # 1 to 100, for JPEG, WebP and AVIF
    webp_lossless: bool = False

    @classmethod
    def of(cls, settings: Settings) -> "Quality":
        """Return the options that the settings `jpeg_quality` and `webp_lossless` say."""
        return cls(quality=settings.saving.jpeg_quality, webp_lossless=settings.saving.webp_lossless)


def format_of(extension: str) -> str:
    """Pillow's name of the format of a file name extension, with or without its dot, in any case."""
    name = FORMATS.get(extension.lower().removeprefix("."))
    if name is None:
        raise InvalidValueError(f"Images cannot be written as {extension!r}; known are {', '.join(FORMATS)}.")
    return name


def holds(extension: str, size_px: tuple[int, int], infotext: str | None) -> bool:
    """True if the format can hold an image of this width and height with this infotext."""
    name = format_of(extension)
    if max(size_px) > MAX_SIDE_PX.get(name, max(size_px)):
        return False
    return name != "JPEG" or not infotext or fits_jpeg(infotext)


def loses_alpha(extension: str, image: Image.Image) -> bool:
    """Whether an image has transparent places that the format cannot hold."""
    has_alpha = image.mode in ("RGBA", "LA") and image.getchannel("A").getextrema() != (255, 255)
    return has_alpha and "RGBA" not in _MODES[format_of(extension)]


def encode_image(
    image: Image.Image,
    extension: str = "png",
    infotext: str | None = None,
    quality: Quality | None = None,
    items: Mapping[str, str] | None = None,
) -> bytes:
    """The bytes of an image file with its infotext inside; `items` are further text chunks of a PNG.

    Transparency is put on white where the format knows none. Raises InvalidValueError for an unknown format or a
    image it cannot hold (see `holds`).
    """
    name = format_of(extension)
    if not holds(extension, image.size, infotext):
        raise InvalidValueError(
            f"An image of {image.width}x{image.height} with {len(infotext or '')} characters of infotext does not fit "
            f"into the format {name}; choose png."
        )
    image = _with_fitting_transparency(image)
    options = _options(name, infotext, quality or Quality(), items)
    stream = BytesIO()
    _in_mode_of(image, name).save(stream, format=name, **options)
    return stream.getvalue()


def _options(name: str, infotext: str | None, quality: Quality, items: Mapping[str, str] | None) -> dict[str, Any]:
    match name:
        case "PNG":
            return {"pnginfo": png_info(infotext, items)}
        case "GIF":
            return {"comment": infotext.encode("utf-8", "replace")} if infotext else {}
        case "WEBP":
            options: dict[str, Any] = {"quality": quality.quality, "lossless": quality.webp_lossless}
        case _:
            options = {"quality": quality.quality}
    # An empty block also keeps the EXIF of a source image out.
    return options | {"exif": exif_bytes(infotext) if infotext else b""}


def _with_fitting_transparency(image: Image.Image) -> Image.Image:
    """Without the note of a transparent color that is left from another mode: Pillow does not write such an image."""
    found = image.info.get("transparency")
    types: dict[str, tuple[type, ...]] = {"RGB": (tuple, list), "L": (int,), "1": (int,), "P": (int, bytes)}
    if found is None or isinstance(found, types.get(image.mode, ())):
        return image
    image = image.copy()
    del image.info["transparency"]
    return image


def _in_mode_of(image: Image.Image, name: str) -> Image.Image:
    if image.mode in _MODES[name]:
        return image
    if image.mode.startswith("I"):
        return in_8_bits(image).convert(_MODES[name][0])
    has_alpha = "A" in image.getbands() or "transparency" in image.info
    if not has_alpha:
        return image.convert("RGB")
    if "RGBA" in _MODES[name]:
        return image.convert("RGBA")
    transparent = image.convert("RGBA")
    flat = Image.new("RGB", image.size, "white")
    flat.paste(transparent, mask=transparent.getchannel("A"))
    return flat


def to_base64(
    image: Image.Image,
    extension: str = "png",
    infotext: str | None = None,
    quality: Quality | None = None,
    items: Mapping[str, str] | None = None,
) -> str:
    """`encode_image` as base64 text. An image that does not fit into the format comes as PNG, and the log says so."""
    if not holds(extension, image.size, infotext):
        log.warning("An image of %dx%d does not fit into %s with its infotext; sent as PNG.", *image.size, extension)
        extension = "png"
    return base64.b64encode(encode_image(image, extension, infotext, quality, items)).decode("ascii")


def to_data_uri(image: Image.Image, extension: str = "png", quality: Quality | None = None) -> str:
    """The image as a data URI, for the page."""
    return f"data:image/{format_of(extension).lower()};base64,{to_base64(image, extension, quality=quality)}"


def decode_base64(text: str, what: str = "The image") -> bytes:
    """The bytes behind base64 text or a data URI; blanks, line breaks and missing padding are no problem.

    Raises InvalidValueError, beginning with `what`, for anything else.
    """
    head = _DATA_URI.match(text)
    body = text[head.end() :] if head else text
    body = body.translate(_BLANKS).rstrip("=")
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise InvalidValueError(
            f"{what} is no base64 text ({shown!r}): {error}. Send an image file as base64 or as a data URI."
        ) from error


def decode_image(text: str, what: str = "The image", max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The image behind base64 text or a data URI, upright. Raises InvalidValueError like the two it calls."""
    return read_image(decode_base64(text, what), what, max_pixels)
