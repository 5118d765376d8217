"""Bounds for content that comes from elsewhere: JSON and YAML by size, depth, number of values and length of numbers,
archives by their members, texts that are put together by their length.

Whatever is wrong with content is a `ContentError` here, which is a `ValueError`: also what Python raises as
`RecursionError`, `OverflowError` or `MemoryError`. Its text continues a sentence that names the file.
"""

import json
import math
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Self

UNREADABLE = (ValueError, RecursionError, MemoryError, OverflowError)
MAX_DEPTH = 100
MAX_DIGITS = 40
"""Digits of a whole number: 2^64 has 20, and 310 are more than a floating-point number holds."""
MAX_TAR_NOTE_BYTES = 1 << 20
TAR_NOTES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Members that say something of the next one, and are read as a whole."""
MAX_JSON_BYTES = 100_000_000
MAX_YAML_BYTES = 2 << 20  # PyYAML takes about ten seconds per MB
MAX_YAML_VALUES = 300_000


class ContentError(ValueError):
    """Content that cannot be read, or is beyond a bound. Where it is no JSON at all, the cause is a
    `json.JSONDecodeError`."""


class DepthError(ContentError):
    """Lists and tables that are nested too deep."""


def refused(name: str) -> object:
    """Refuse NaN and infinities: the default for `read_json`."""
    raise ContentError(f"it holds {name}, which is no number")


def read_json(
    text: str | bytes,
    *,
    max_bytes: int = MAX_JSON_BYTES,
    max_depth: int = MAX_DEPTH,
    constant: Callable[[str], object] = refused,
) -> Any:
    """The value of a JSON text. `constant` gives what stands for NaN, Infinity and -Infinity, and for numbers that are
    too large for a float: `float` for themselves. Raises `ContentError`."""
    if len(text) > max_bytes:
        raise ContentError(f"it is {len(text)} characters long; allowed are {max_bytes}")

    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass").removeprefix("\ufeff")
        value = _decoder(constant).decode(text)
        check_depth(value, max_depth)
    except ContentError:
        raise
    except UNREADABLE as error:
        raise _content_error(error) from error
    return value


def read_json_at(text: str, begin: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at a place of a text, and the place where it ends. Raises `ContentError`."""
    try:
        value, end = _decoder(refused).raw_decode(text, begin)
        check_depth(value)
    except ContentError:
        raise
    except UNREADABLE as error:
        raise _content_error(error) from error
    return value, end


def _decoder(constant: Callable[[str], object]) -> json.JSONDecoder:
    def decimal(digits: str) -> object:
        value = float(digits)
        return value if math.isfinite(value) else constant("Infinity" if value > 0 else "-Infinity")

    return json.JSONDecoder(parse_int=_whole, parse_float=decimal, parse_constant=constant)


def read_json_file(path: Path, *, max_bytes: int = MAX_JSON_BYTES, constant: Callable[[str], object] = refused) -> Any:
    """The value of a JSON file in UTF-8. Raises `ContentError` and OSError."""
    return read_json(read_bounded(path, max_bytes), max_bytes=max_bytes, constant=constant)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """A file's content. Raises `ContentError` for one that is larger, or a pipe or device, and OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ContentError("it is no file")
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ContentError(f"it is larger than {max_bytes / 1e6:g} MB")
    return data


def check_depth(value: object, max_depth: int = MAX_DEPTH) -> None:
    """Raise `ContentError` for lists and tables that are nested deeper. Knows no rings: JSON has none."""
    level = [value]
    for _ in range(max_depth + 1):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise DepthError(f"it is nested more than {max_depth} levels deep")


def read_yaml(text: str, *, max_bytes: int = MAX_YAML_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """The value of a YAML text: tables, lists and texts; numbers and dates stay as they are written. An alias counts as
    all that it stands for. Raises `ContentError`."""
    if len(text) > max_bytes:
        raise ContentError(f"it is {len(text)} characters long; allowed are {max_bytes}")
    import yaml

    try:
        loader = _yaml_loader()(text)
        loader.left_depth = max_depth
        return loader.get_single_data()
    except ContentError:
        raise
    except (yaml.YAMLError, *UNREADABLE) as error:
        raise _content_error(error) from error


@cache
def _yaml_loader() -> Any:
    """A class, made when it is needed: PyYAML is no part of what the program is set up with."""
    import re

    import yaml
    from yaml.composer import Composer
    from yaml.constructor import SafeConstructor
    from yaml.parser import Parser
    from yaml.reader import Reader
    from yaml.resolver import BaseResolver
    from yaml.scanner import Scanner

    class Loader(Reader, Scanner, Parser, Composer, SafeConstructor, BaseResolver):  # type: ignore[misc]
        """Counts nodes as they are composed, those that an alias stands for again at each alias."""

        yaml_constructors = {
            f"tag:yaml.org,2002:{name}": SafeConstructor.yaml_constructors[f"tag:yaml.org,2002:{name}"]
            for name in ("str", "seq", "map")
        } | {None: SafeConstructor.construct_undefined}

        def __init__(self, text: str) -> None:
            Reader.__init__(self, text)
            for part in (Scanner, Parser, Composer, SafeConstructor, BaseResolver):
                part.__init__(self)
            self.left_depth = MAX_DEPTH
            self.values = 0
            self.sizes: dict[str, int] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            event: Any = self.peek_event()
            before = self.values
            if isinstance(event, yaml.AliasEvent):
                if event.anchor in self.anchors and event.anchor not in self.sizes:
                    raise ContentError(f"*{event.anchor} stands inside of what it names")
                self.values += self.sizes.get(event.anchor, 0)
            self.values += 1
            self.left_depth -= 1
            if self.left_depth < 0:
                raise ContentError("it is nested too deep")
            if self.values > MAX_YAML_VALUES:
                raise ContentError(f"it stands for more than {MAX_YAML_VALUES} values")
            node = super().compose_node(parent, index)
            self.left_depth += 1
            if not isinstance(event, yaml.AliasEvent) and event.anchor is not None:
                self.sizes[event.anchor] = self.values - before
            return node

    Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("^<<$"), ["<"])
    return Loader


class _TarHeader(tarfile.TarInfo):
    """A header whose size is none that would lead the reader back, or to the end of a bomb."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        is_about_the_next = found.type not in tarfile.SUPPORTED_TYPES or found.type in TAR_NOTES
        if found.size < 0 or (is_about_the_next and found.size > MAX_TAR_NOTE_BYTES):
            raise ContentError(f"a header in it says that it is {found.size} bytes long")
        return found


def open_tar(archive: Path) -> tarfile.TarFile:
    """An open tar archive, compressed or not. Raises `ContentError`, `tarfile.TarError` and OSError."""
    try:
        return tarfile.open(archive, tarinfo=_TarHeader)
    except (RecursionError, MemoryError, OverflowError) as error:
        raise _content_error(error) from error


def tar_members(tape: tarfile.TarFile, max_members: int, max_bytes: int) -> Iterator[tarfile.TarInfo]:
    """The members of an archive of `open_tar`. Raises `ContentError` for more of them or more bytes in all, and for a
    negative size, which leads the reader back (CVE-2025-8194); `tarfile.TarError` and OSError."""
    count = total = 0
    try:
        while (member := tape.next()) is not None:
            count, total = count + 1, total + member.size
            if member.size < 0:  # of a pax header
                raise ContentError(f"{member.name!r} says that it is {member.size} bytes long")
            if count > max_members or total > max_bytes:
                raise ContentError(f"it has more than {max_members} files or {max_bytes / 1e6:g} MB")
            yield member
    except (RecursionError, MemoryError, OverflowError) as error:
        raise _content_error(error) from error


def joined(parts: Iterable[str], between: str, max_chars: int) -> str:
    """Texts put together, cut off at a length: what one text refers to many times grows with each."""
    found: list[str] = []
    length = 0
    for part in parts:
        if not part:
            continue
        found.append(part[: max(max_chars - length, 0)])
        length += len(found[-1]) + len(between)
        if length >= max_chars:
            break
    return between.join(found)[:max_chars]


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ContentError(f"it holds a number of {len(digits)} digits")
    return int(digits)


def _content_error(error: BaseException) -> ContentError:
    if isinstance(error, RecursionError):
        return DepthError("it is nested too deep")
    if isinstance(error, MemoryError):
        return ContentError("it needs more memory than there is")
    return ContentError(" ".join(str(error).split())[:300] or type(error).__name__)
