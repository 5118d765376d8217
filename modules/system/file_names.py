"""Names of files and folders: text made into names that every system takes, and names from outside (a request, a file,
an archive) checked before anything is read, written or moved under them. Windows' rules are the strictest and hold
everywhere."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from modules.errors import InvalidValueError

MAX_PART_CHARS = 128
"""Longest text that one pattern may put into a name."""

MAX_NAME_BYTES = 240
"""Longest file name that is made. File systems end at 255 bytes; the rest is for the counter's growth and the temporary
name."""
MAX_GIVEN_BYTES = 200
"""Longest name that is taken from outside: what is beside the file has longer ones."""

_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f\ud800-\udfff]')
_FORBIDDEN_OR_HASH = re.compile(f"#|{_FORBIDDEN.pattern}")  # a # would end the path of an address
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(?= *(?:\.|$))", re.IGNORECASE)


def sanitize_part(text: str, *, keep_spaces: bool = False, max_chars: int = MAX_PART_CHARS) -> str:
    """Make `text` a part of a file name: forbidden signs and, unless kept, blanks become underscores; cut to length."""
    text = _FORBIDDEN_OR_HASH.sub("_", text)
    if not keep_spaces:
        text = text.replace(" ", "_")
    return text.lstrip(" ")[:max_chars].rstrip(" .")


def sanitize_name(text: str, max_bytes: int = MAX_NAME_BYTES) -> str:
    """Make `text` a whole file or folder name without extension: also no device name, no dots alone, cut to bytes."""
    name = cut_bytes(_FORBIDDEN_OR_HASH.sub("_", text).strip(" "), max_bytes).rstrip(" .")
    return f"_{name}" if _DEVICES.match(name) else name


def without_controls(text: str) -> str:
    """Remove control characters and those that turn the direction of what follows, so that text may be shown next to
    other text."""
    return _CONTROLS.sub("", text)


def cut_bytes(text: str, max_bytes: int) -> str:
    """Cut `text` to the longest beginning that has at most `max_bytes` bytes in UTF-8."""
    return text.encode("utf-8")[:max_bytes].decode("utf-8", "ignore")


def given_path(text: str) -> Path:
    """Return a path that a person typed, with ~ for a home folder; it need not be there.

    Raises `InvalidValueError` for an empty one, and for one that the system does not take.
    """
    try:
        if "\0" in text or not text.strip():
            raise ValueError("it is empty or holds a NUL")
        path = Path(text.strip()).expanduser()
        os.fsencode(path)
        path.exists()
    except (RuntimeError, ValueError, OSError) as error:  # no such home folder, signs without bytes, too long a name
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidValueError(f"{without_controls(text)[:80]!r} is no path ({reason}). Give another one.") from error
    return path


def check_name(name: str) -> str:
    """Return `name` if it can be that of one file or folder on every system.

    Raises `InvalidValueError` for an empty one, dots alone, separators, other signs that Windows does not take, control
    characters, names of devices, blanks or dots at the end, and names that are too long.
    """
    shown = without_controls(name)[:80].encode("utf-8", "replace").decode("utf-8")
    if not name.strip(" .") or name[-1] in " .":
        raise InvalidValueError(
            f"{shown!r} cannot be the name of a file or folder: it is empty, or ends with a dot or a blank. Choose "
            "another name."
        )
    if _FORBIDDEN.search(name) or _CONTROLS.search(name):
        raise InvalidValueError(
            f'{shown!r} cannot be the name of a file or folder: it may not hold / \\ < > : " | ? * or invisible '
            "control characters. Choose another name."
        )
    if _DEVICES.match(name):
        raise InvalidValueError(f"{shown!r} is the name of a device on Windows, as CON and NUL are. Choose another.")
    if len(name.encode("utf-8")) > MAX_GIVEN_BYTES:
        raise InvalidValueError(f"The name {shown!r}... is longer than {MAX_GIVEN_BYTES} bytes. Choose a shorter one.")
    return name


def is_name(name: str) -> bool:
    """Tell whether `check_name` takes a name."""
    try:
        return bool(check_name(name))
    except InvalidValueError:
        return False


def lies_in(place: Path, folders: Iterable[Path]) -> bool:
    """Tell whether a place, which need not be there, lies in one of the folders, or is one, once links are followed."""
    try:
        real = place.resolve()
        return any(real.is_relative_to(folder.resolve()) for folder in folders)
    except (OSError, RuntimeError, ValueError):  # a ring of links, too long a name, a NUL
        return False


def place_inside(folder: Path, name: str) -> Path:
    """Return the place of `name` below `folder`; slashes of both directions separate folders.

    Raises `InvalidValueError` for a name that is empty, absolute or has a part that `check_name` refuses (`..` and
    drives among them), and for one that leads out of the folder over a link.
    """
    parts = name.replace("\\", "/").split("/")
    if not parts[0] or ".." in parts or name[1:2] == ":":
        raise InvalidValueError(
            f"{without_controls(name)[:80]!r} leads out of its folder, or is empty: give a name inside of it, without "
            ".. and without a slash or a drive at the beginning. Choose another name."
        )
    place = folder.joinpath(*map(check_name, parts))
    if not lies_in(place, (folder,)):
        raise InvalidValueError(f"{name[:80]!r} leads out of its folder over a link. Choose another name.")
    return place
