"""Lists of tags for completing prompts: CSV files with `name,category,count,aliases` in each line.

Aliases stand in quotes with commas between them. The format is that of the tag completion of the reference UI.
"""

import csv
import logging
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from modules.system.decoding import marked_encoding

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 256 * 2**20
_LINE, _NAME, _ALIAS = "\n", "\t", "\v"  # before a tag, behind its name, before each further alias


@dataclass(frozen=True)
class Tag:
    """A tag as its file has it. `category` and `count` (how many images have it) are 0 where the file says none."""

    name: str
    category: int = 0
    count: int = 0
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Match:
    """A tag that was found, and the alias by which, if it was one."""

    tag: Tag
    alias: str | None = None


def read_tags(path: Path) -> list[Tag]:
    """The tags of a file, in its order; a first line of titles is passed over. Raises OSError."""
    if path.stat().st_size > MAX_FILE_BYTES:
        log.warning("%s is larger than %d MB and was left out.", path, MAX_FILE_BYTES >> 20)
        return []
    tags = []
    with path.open(encoding=marked_encoding(path), errors="replace", newline="") as stream:
        rows = csv.reader(line.replace("\0", "") for line in stream)
        try:
            for number, row in enumerate(rows):
                if row and row[0].strip() and not (number == 0 and row[0].strip().lower() in ("name", "tag")):
                    tags.append(_tag(row))
        except csv.Error as error:
            log.warning("%s cannot be read from line %d on: %s", path, rows.line_num, error)
    return tags


def _tag(row: list[str]) -> Tag:
    def whole(place: int) -> int:
        text = row[place].strip() if len(row) > place else ""
        return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0

    aliases = tuple(alias.strip() for alias in (row[3] if len(row) > 3 else "").split(",") if alias.strip())
    return Tag(" ".join(row[0].split()), whole(1), whole(2), aliases)


class TagIndex:
    """Finds tags by a part of their names, the most frequent first.

    All names and aliases stand in one text, the most frequent tag first, so that the first hits of a plain text search
    are the best ones and a search ends with them.
    """

    def __init__(self, tags: Iterable[Tag]) -> None:
        self._tags = sorted(tags, key=lambda tag: -tag.count)
        self._starts = array("Q")
        parts, length = [], 0
        for tag in self._tags:
            aliases = _ALIAS.join(_plain(alias) for alias in tag.aliases)
            part = f"{_LINE}{_plain(tag.name)}{_NAME}{aliases}"
            self._starts.append(length)
            parts.append(part)
            length += len(part)
        self._text = "".join(parts) + _LINE

    def __len__(self) -> int:
        return len(self._tags)

    def find(self, text: str, limit: int) -> list[Match]:
        """Names that begin with `text`, then aliases that do, then names and aliases with a word that does, then any
        that hold it. Blanks are underscores, case does not matter."""
        wanted = _plain(text)
        if not wanted or wanted not in self._text:
            return []
        found: dict[int, str | None] = {}
        beginnings = ((_LINE,), (_NAME, _ALIAS), ("_",), ("",))
        for before in beginnings:
            for place in self._merged([f"{mark}{wanted}" for mark in before], limit):
                if len(found) == limit:
                    break
                number = bisect_right(self._starts, place) - 1
                if number not in found:
                    found[number] = self._alias_at(number, place)
            if len(found) == limit:
                break
        return [Match(self._tags[number], alias) for number, alias in found.items()]

    def _merged(self, needles: list[str], limit: int) -> list[int]:
        """Positions of the first hits in different tags."""
        places: list[int] = []
        for needle in needles:
            places += self._hits(needle, limit)
        return sorted(places)

    def _hits(self, needle: str, limit: int) -> Iterator[int]:
        text, at = self._text, 0
        for _ in range(limit * 2):  # some are found already
            at = text.find(needle, at)
            if at < 0:
                return
            yield at
            after = bisect_right(self._starts, at)
            at = self._starts[after] if after < len(self._starts) else sys.maxsize

    def _alias_at(self, number: int, place: int) -> str | None:
        """The alias that stands at a position of a tag's part; None for its name."""
        start = self._starts[number]
        end = self._text.index(_NAME, start)
        if place < end:
            return None
        return self._tags[number].aliases[self._text.count(_ALIAS, end, place + 1)]


def _plain(text: str) -> str:
    return "_".join(text.lower().split())
