"""Infotext inside image files: PNG chunk `parameters`; EXIF UserComment in JPEG, WebP and AVIF; GIF comment; the lowest
bits of pixels. Other programs write texts of their own into any tag of EXIF."""

import re
import struct
from collections.abc import Mapping
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo, iTXt

from modules.errors import InvalidValueError
from modules.images.infotext import MAX_TEXT_CHARS, written_fields
from modules.images.other_programs import XMP, best_infotext, is_json
from modules.images.reading import open_image
from modules.images.stealth import hidden_text

PARAMETERS = "parameters"

_EXIF_IFD = 0x8769
_USER_COMMENT = 0x9286
_USER_COMMENT_NAME = "UserComment"
_IMAGE_DESCRIPTION = 0x010E
_XP_TAGS = range(0x9C9B, 0x9CA0)
"""Tags that Windows writes in UTF-16."""
_NAMED_JSON = re.compile(r"\s*([A-Za-z_]{1,40})\s*:\s*(\{.*)", re.DOTALL)
_MAX_JPEG_EXIF_BYTES = 65_533 - len(b"Exif\0\0")
"""A JPEG segment holds 65,533 bytes after its length."""

_TECHNICAL = frozenset(
    (
        *("jfif", "jfif_version", "jfif_unit", "jfif_density", "dpi", "exif", "loop", "background"),
        *("timestamp", "duration", "progressive", "progression", "icc_profile", "chromaticity", "photoshop", "gamma"),
        *("srgb", "interlace", "transparency", "compression", "quality", "default_image", "bbox", "mp"),
        *("mpoffset", "adobe", "adobe_transform", "extension", "version", "xmp"),
    )
)
"""Entries of Pillow's `info` that describe the file, not the image."""


def read_metadata(source: Image.Image | bytes | Path) -> tuple[str | None, dict[str, str]]:
    """The infotext of an image (None: it has none) and its other text entries, by name.

    Raises InvalidValueError for bytes or a file that are no image, and for more text than `MAX_TEXT_CHARS`.
    """
    image = source if isinstance(source, Image.Image) else open_image(source)
    items = {str(key): _text(value) for key, value in image.info.items()}
    written = {PARAMETERS: items.pop(PARAMETERS)} if PARAMETERS in items else {}
    exif = _exif_texts(image)
    if _USER_COMMENT_NAME in exif:
        items["exif comment"] = exif[_USER_COMMENT_NAME]
        written = {"exif comment": exif.pop(_USER_COMMENT_NAME), **written}
    comment = items.get("comment")
    if comment is not None and (is_json(comment) or len(written_fields(comment)[2]) > 0):
        written["comment"] = comment  # what an editor writes there is no infotext
    hidden = hidden_text(image)
    if hidden is not None:
        written["stealth PNG info"] = items["stealth PNG info"] = hidden
    texts = {key: value for key, value in items.items() if key.lower() not in _TECHNICAL}
    texts |= {name: value for name, value in exif.items() if name not in texts}
    chars = sum(map(len, texts.values())) + len(written.get(PARAMETERS, ""))
    if chars > MAX_TEXT_CHARS:
        raise InvalidValueError(
            f"The image holds {chars:,} characters of text; allowed are {MAX_TEXT_CHARS:,}. Save it without its texts."
        )
    others = {**texts, **({XMP: items["xmp"]} if "xmp" in items else {})}
    infotext = best_infotext(written.values(), others, image.width, image.height)
    if PARAMETERS in written and written[PARAMETERS] != infotext:
        texts = {PARAMETERS: written[PARAMETERS], **texts}
    return infotext, texts


def png_info(infotext: str | None, items: Mapping[str, str] | None = None) -> PngInfo:
    """Text chunks for a PNG: `items` as they are, then the infotext under `parameters`."""
    chunks = PngInfo()
    for key, value in (items or {}).items():
        if key != PARAMETERS:
            _add_text(chunks, key, writable(value))
    if infotext:
        _add_text(chunks, PARAMETERS, writable(infotext))
    return chunks


def _add_text(chunks: PngInfo, key: str, text: str) -> None:
    """Add a text, as UTF-8 where its Latin-1 bytes would be taken for UTF-8."""
    if _from_latin_1(text) != text:
        chunks.add_itxt(key, text)
    else:
        chunks.add_text(key, text)


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


def _exif_texts(image: Image.Image) -> dict[str, str]:
    """The texts in the EXIF block that programs write: the UserComment of the sub-block, and of the main block JSON and
    what is named before it, `workflow:{...}`, whatever the tag."""
    if "exif" not in image.info:
        return {}
    texts: dict[str, str] = {}
    try:
        exif = image.getexif()
        comment = _tag_text(_USER_COMMENT, exif.get_ifd(_EXIF_IFD).get(_USER_COMMENT))
        found = {tag: _tag_text(tag, value) for tag, value in exif.items()}
    except (OSError, SyntaxError, ValueError, KeyError, TypeError, struct.error):
        return {}  # a damaged EXIF block holds no texts; the image is fine
    if comment:
        texts[_USER_COMMENT_NAME] = comment
    for tag, text in found.items():
        named = _NAMED_JSON.fullmatch(text)
        if named is not None:
            texts.setdefault(named[1].lower(), named[2])
        elif is_json(text) or "Steps" in written_fields(text)[2]:
            texts.setdefault(_USER_COMMENT_NAME, text)
        elif tag == _IMAGE_DESCRIPTION and text:
            texts.setdefault("ImageDescription", text)
    return texts


def _tag_text(tag: int, value: object) -> str:
    """The text of a tag; "" for numbers."""
    if isinstance(value, bytes):
        return value.decode("utf-16-le", "replace").rstrip("\0") if tag in _XP_TAGS else decode_user_comment(value)
    return _from_latin_1(value).rstrip("\0") if isinstance(value, str) else ""


def _text(value: object) -> str:
    """A text of an image file. Chunks of PNG are read as Latin-1, which many programs do not keep to."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, iTXt) else _from_latin_1(str(value))


def _from_latin_1(text: str) -> str:
    """A text that was read as Latin-1 and whose bytes are UTF-8, as UTF-8; others unchanged."""
    if text.isascii():
        return text
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


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
        return _without_order(body)
    return _without_order(data)


def _without_order(body: bytes) -> str:
    """A text of an encoding that is not named: UTF-16 where it has null bytes inside, else UTF-8."""
    if 0 in body.rstrip(b"\0") or body.startswith((b"\xff\xfe", b"\xfe\xff")):
        body = body[: len(body) // 2 * 2]
        return body.decode(_byte_order(body), "replace").removeprefix("\ufeff").rstrip("\0")
    return body.decode("utf-8", "replace").rstrip("\0")


def _byte_order(body: bytes) -> str:
    """Line breaks, blanks, digits and Latin letters have a zero as their high byte: where are more zeros?"""
    if body.startswith(b"\xff\xfe"):
        return "utf-16-le"
    little = body[1::2].count(0) > body[0::2].count(0)
    return "utf-16-le" if little else "utf-16-be"
