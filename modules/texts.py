"""Texts from outside: what is no text although Python holds it, found and repaired."""

import re

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a UTF-16 pair. JSON can write it (`"\\ud800"`), and Python reads it, but no file or reply can hold it."""


def whole_text(text: str) -> str:
    """The text with U+FFFD, the replacement character, instead of each lone surrogate."""
    return LONE_SURROGATE.sub("\ufffd", text)


def whole_texts(value: object) -> object:
    """`whole_text` for every text in JSON data, keys included; everything else as it is."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [whole_texts(item) for item in value]
    if isinstance(value, dict):
        return {whole_text(str(key)): whole_texts(item) for key, item in value.items()}
    return value


def why_not_storable(text: str) -> str | None:
    """What keeps a text out of files and paths, as the end of "it holds ..."; None for one that can be stored."""
    if "\0" in text:
        return f"a null character at position {text.index(chr(0))}"
    lone = LONE_SURROGATE.search(text)
    return f"half of a surrogate pair (\\u{ord(lone.group()):04x}) at position {lone.start()}" if lone else None
