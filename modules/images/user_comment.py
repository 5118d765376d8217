"""The EXIF field UserComment: eight bytes that name the encoding, then the text (EXIF 2.32, 4.6.5)."""

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
