"""Text files of other programs, in whatever encoding they are."""

import codecs
import unicodedata
from pathlib import Path

MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def marked_encoding(path: Path) -> str:
    """The encoding that a file's byte order mark names, UTF-8 without one. Raises OSError."""
    with path.open("rb") as file:
        return _marked(file.read(4)) or "utf-8"


def _marked(data: bytes) -> str | None:
    return next((name for mark, name in MARKS if data.startswith(mark)), None)


def decode_text(data: bytes) -> str:
    """Decode a text of an unknown encoding: by its byte order mark, as UTF-8, as UTF-16 where every second byte is
    zero, else as `charset_normalizer` guesses, or as Windows has it in western Europe."""
    marked = _marked(data)
    if marked is not None:
        return data.decode(marked, errors="replace")
    try:
        if b"\0" not in data:
            return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    if data[1::2].count(0) * 4 > len(data):
        return data.decode("utf-16-le", errors="replace")
    if data[::2].count(0) * 4 > len(data):
        return data.decode("utf-16-be", errors="replace")
    western = data.decode("cp1252", errors="replace")
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return western
    guess = from_bytes(data).best()
    if guess is None:
        return western
    letters = [letter for letter in str(guess) if letter.isalpha()]
    is_latin = all("LATIN" in unicodedata.name(letter, "") for letter in letters)
    return western if is_latin else str(guess)  # few letters do not tell one Latin alphabet from another
