"""Infotext inside image files: PNG chunk `parameters`; EXIF UserComment in JPEG, WebP and AVIF; GIF comment."""

import struct
from collections.abc import Mapping
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.errors import InvalidValueError
from modules.images.infotext import MAX_TEXT_CHARS
from modules.images.other_programs import foreign_infotext, infotext_of_text
from modules.images.reading import open_image

PARAMETERS = "parameters"

_EXIF_IFD = 0x8769
_USER_COMMENT = 0x9286
_MAX_JPEG_EXIF_BYTES = 65_533 - len(b"Exif\0\0")
"""A JPEG segment holds 65,533 bytes after its length."""

_TECHNICAL = frozenset(
    {
        "jfif",
        "jfif_version",
        "jfif_unit",
        "jfif_density",
        "dpi",
        "exif",
        "loop",
        "background",
        "timestamp",
        "duration",
        "progressive",
        "progression",
        "icc_profile",
        "chromaticity",
        "photoshop",
        "gamma",
        "srgb",
        "interlace",
        "transparency",
        "compression",
        "quality",
        "default_image",
        "bbox",
        "mp",
        "mpoffset",
        "adobe",
        "adobe_transform",
        "extension",
        "version",
        "xmp",
    }
)
"""Entries of Pillow's `info` that describe the file, not the image."""


def read_metadata(source: Image.Image | bytes | Path) -> tuple[str | None, dict[str, str]]:
    """The infotext of an image (None: it has none) and its other text entries, by name.

    Raises InvalidValueError for bytes or a file that are no image, and for more text than `MAX_TEXT_CHARS`.
    """
    image = source if isinstance(source, Image.Image) else open_image(source)
    items = dict(image.info)
    infotext = items.pop(PARAMETERS, None)
    comment = _exif_comment(image)
    if comment is not None:
        items["exif comment"] = comment
        infotext = comment
    elif "comment" in items:
        infotext = items["comment"]
    texts = {str(key): _text(value) for key, value in items.items() if str(key).lower() not in _TECHNICAL}
    chars = len(infotext or "") + sum(map(len, texts.values()))
    if chars > MAX_TEXT_CHARS:
        raise InvalidValueError(
            f"The image holds {chars:,} characters of text; allowed are {MAX_TEXT_CHARS:,}. Save it without its texts."
        )
    if infotext is None:
        return foreign_infotext(texts, image.width, image.height), texts
    written = _text(infotext)
    converted = infotext_of_text(written)
    return (written, texts) if converted is None else (converted, {PARAMETERS: written, **texts})


def png_info(infotext: str | None, items: Mapping[str, str] | None = None) -> PngInfo:
    """Text chunks for a PNG: `items` as they are, then the infotext under `parameters`."""
    chunks = PngInfo()
    for key, value in (items or {}).items():
        if key != PARAMETERS:
            chunks.add_text(key, writable(value))
    if infotext:
        chunks.add_text(PARAMETERS, writable(infotext))
    return chunks


def exif_bytes(infotext: str) -> bytes:
    """An EXIF block with the infotext as its UserComment.

    As bytes, because Pillow drops an `Exif` object for AVIF when it has entries in the sub-block only.
    """
    exif = Image.Exif()
    exif.get_ifd(_EXIF_IFD)[_USER_COMMENT] = encode_user_comment(writable(infotext))
    return exif.tobytes()


def fits_jpeg(infotext: str) -> bool:
    """False if the infotext is too long for the EXIF block of a JPEG."""
    return len(exif_bytes(infotext)) <= _MAX_JPEG_EXIF_BYTES


def writable(text: str) -> str:
    """The text without what no file format can hold: null characters are dropped, lone surrogates become "?"."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def _exif_comment(image: Image.Image) -> str | None:
    if "exif" not in image.info:
        return None
    try:
        comment = image.getexif().get_ifd(_EXIF_IFD).get(_USER_COMMENT)
    except (OSError, SyntaxError, ValueError, KeyError, TypeError, struct.error):
        return None  # a damaged EXIF block holds no comment; the image is fine
    if isinstance(comment, bytes) and comment:
        return decode_user_comment(comment)
    return comment if isinstance(comment, str) and comment else None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_UNICODE = b"UNICODE\0"
_ASCII = b"ASCII\0\0\0"
_JIS = b"JIS\0\0\0\0\0"
_UNDEFINED = b"\0" * 8


def encode_user_comment(text: str) -> bytes:
    """The text as UTF-16, most significant byte first, as the reference UI and its readers expect."""
    return _UNICODE + text.encode("utf-16-be", "replace")


def decode_user_comment(data: bytes) -> str:
    """The text of a UserComment; bytes that are no text of the named encoding become replacement signs.

    The standard leaves the byte order of "UNICODE" open, and programs write both.
    """
    head, body = data[:8], data[8:]
    if head == _UNICODE:
        return body.decode(_byte_order(body), "replace").removeprefix("\ufeff")
    if head == _JIS:
        return body.decode("iso2022_jp", "replace").rstrip("\0")
    if head in (_ASCII, _UNDEFINED):
        return body.decode("utf-8", "replace").rstrip("\0")
    return data.decode("utf-8", "replace").rstrip("\0")


def _byte_order(body: bytes) -> str:
    """Line breaks, blanks, digits and Latin letters have a zero as their high byte: where are more zeros?"""
    if body.startswith(b"\xff\xfe"):
        return "utf-16-le"
    little = body[1::2].count(0) > body[0::2].count(0)
    return "utf-16-le" if little else "utf-16-be"
