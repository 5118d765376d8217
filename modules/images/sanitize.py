"""Text to parts of file names that every system takes: Windows' rules are the strictest and hold everywhere."""

import re

MAX_PART_CHARS = 128
"""Longest text that one pattern may put into a name."""

MAX_NAME_BYTES = 240
"""Longest file name. File systems end at 255 bytes; the rest is for the counter's growth and the temporary name."""

_FORBIDDEN = re.compile(r'[#<>:"/\\|?*\x00-\x1f\x7f\ud800-\udfff]')
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(?=\.|$)", re.IGNORECASE)


def sanitize_part(text: str, *, keep_spaces: bool = False, max_chars: int = MAX_PART_CHARS) -> str:
    """`text` as a part of a file name: forbidden signs and, unless kept, blanks become underscores; cut to length."""
    text = _FORBIDDEN.sub("_", text)
    if not keep_spaces:
        text = text.replace(" ", "_")
    return text.lstrip(" ")[:max_chars].rstrip(" .")


def sanitize_name(text: str, max_bytes: int = MAX_NAME_BYTES) -> str:
    """`text` as a whole file or folder name without extension: also no device name, no dots alone, cut to bytes."""
    name = cut_bytes(_FORBIDDEN.sub("_", text).strip(" "), max_bytes).rstrip(" .")
    return f"_{name}" if _DEVICES.match(name) else name


def without_controls(text: str) -> str:
    """Text as it may be shown beside other text: no control characters, and none that turn the direction of what
    follows."""
    return _CONTROLS.sub("", text)


def cut_bytes(text: str, max_bytes: int) -> str:
    """The longest beginning of `text` that has at most `max_bytes` bytes in UTF-8."""
    return text.encode("utf-8")[:max_bytes].decode("utf-8", "ignore")
