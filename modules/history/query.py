"""The language of the search: `steps:>20 model:foo -lora:bar date:2026-11 "red circle"`.

Words and phrases are looked for in the prompt, `key:value` in the values of an image. All must hold; a minus sign in
front turns one around. A number is compared as a number (20, >20, >=20, <5, 20..30), a text is found where it holds
the value; `key:=text` wants the whole text.
"""

import re
from dataclasses import dataclass
from datetime import datetime

from modules.errors import InvalidValueError
from modules.history.facets import key_of, number_of

TOKEN = re.compile(r'(-?)(?:([A-Za-z][\w./-]{0,40}):(?=\S))?("(?:[^"]*)"?|\S+)')
COMPARED = re.compile(r"(>=|<=|>|<|=)?(.*)", re.DOTALL)
DATE = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?")
STATES = ("starred", "missing", "trashed")
MAX_TERMS = 64
MAX_EXACT = 2**53
MAX_CHARS = 2000


@dataclass(frozen=True)
class Words:
    """A word or phrase in the prompt, or in the negative prompt or the name of the file."""

    text: str
    column: str = "prompt"
    is_negated: bool = False


@dataclass(frozen=True)
class BoardName:
    """A part of the name of a board, or all of it."""

    text: str
    is_whole: bool = False
    is_negated: bool = False


@dataclass(frozen=True)
class Value:
    """A value of a key: between `low` and `high` (`is_open`: these two excluded), or a text."""

    key: str
    text: str = ""
    is_whole: bool = False
    low: float | None = None
    high: float | None = None
    is_open: bool = False
    is_negated: bool = False

    @property
    def is_number(self) -> bool:
        return self.low is not None or self.high is not None


@dataclass(frozen=True)
class Query:
    """Query of the history. Times are seconds since 1970: from `since`, before `until`."""

    words: tuple[Words, ...] = ()
    values: tuple[Value, ...] = ()
    since: float | None = None
    until: float | None = None
    states: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()  # states that it must not have
    boards: tuple[BoardName, ...] = ()


def parse_query(text: str) -> Query:
    """Read a search. Raises `InvalidValueError` with what is wrong."""
    text = text.replace("\0", " ")  # which ends a text in SQLite's full-text search
    if len(text) > MAX_CHARS:
        raise InvalidValueError(f"The search has {len(text)} characters; allowed are {MAX_CHARS}.")
    words: list[Words] = []
    values: list[Value] = []
    boards: list[BoardName] = []
    since: float | None = None
    until: float | None = None
    states: dict[bool, set[str]] = {False: set(), True: set()}
    for number, match in enumerate(TOKEN.finditer(text)):
        if number >= MAX_TERMS:
            raise InvalidValueError(f"The search has more than {MAX_TERMS} terms; leave some out.")
        minus, name, raw = match.groups()
        value, is_negated = raw.strip('"').strip(), bool(minus)
        key = key_of(name) if name else ""
        if not value:
            continue
        if not key:
            words.append(Words(value, is_negated=is_negated))
        elif key == "date":
            if is_negated:
                raise InvalidValueError(
                    "A date cannot be left out with a minus sign; use date:<2026-11 or date:>2026-11."
                )
            first, last = _dates(value)
            since = first if since is None else max(since, first or since)
            until = last if until is None else min(until, last or until)
        elif key == "is":
            if value.lower() not in STATES:
                raise InvalidValueError(f"'is:{value}' is not known; there are is:{', is:'.join(STATES)}.")
            states[is_negated].add(value.lower())
        elif key in ("prompt", "negativeprompt", "file"):
            column = {"prompt": "prompt", "negativeprompt": "negative", "file": "name"}[key]
            words.append(Words(value, column, is_negated))
        elif key == "board":
            boards.append(BoardName(value.removeprefix("=").strip('"'), value.startswith("="), is_negated))
        else:
            values.append(_value(key, value, is_negated))
    without = frozenset(states[True])
    return Query(tuple(words), tuple(values), since, until, frozenset(states[False]), without, tuple(boards))


def _value(key: str, text: str, is_negated: bool) -> Value:
    first, dots, last = text.partition("..")
    if dots:
        low, high = number_of(first), number_of(last)
        if (low is None) == bool(first) or (high is None) == bool(last) or (low is None and high is None):
            raise InvalidValueError(f"'{key}:{text}' is no range of numbers, such as {key}:20..30.")
        return Value(key, low=low, high=high, is_negated=is_negated)
    compared = COMPARED.fullmatch(text)
    assert compared is not None  # it matches anything
    sign, rest = compared[1] or "", compared[2].strip()
    number = number_of(rest)
    if sign in ("", "="):
        if number is not None and key != "modelhash" and not _is_rounded(number, rest):
            return Value(key, low=number, high=number, is_negated=is_negated)
        is_whole = sign == "=" or (number is not None and _is_rounded(number, rest))
        return Value(key, rest, is_whole=is_whole, is_negated=is_negated)
    if number is None:
        raise InvalidValueError(f"'{key}:{text}' compares with no number; write {key}:{sign}20, for instance.")
    low, high = (number, None) if sign.startswith(">") else (None, number)
    return Value(key, low=low, high=high, is_open="=" not in sign, is_negated=is_negated)


def _is_rounded(number: float, text: str) -> bool:
    """Whether a float holds a whole number, such as a large seed, not exactly: it is compared as text."""
    return text.isdecimal() and abs(number) >= MAX_EXACT


def _dates(text: str) -> tuple[float | None, float | None]:
    """The times from and until which a date holds: a year, a month, a day, one sided or a range."""
    first, dots, last = text.partition("..")
    if dots:
        return (_span(first)[0] if first else None), (_span(last)[1] if last else None)
    compared = COMPARED.fullmatch(text)
    assert compared is not None
    begin, end = _span(compared[2])
    match compared[1]:
        case ">":
            return end, None
        case ">=":
            return begin, None
        case "<":
            return None, begin
        case "<=":
            return None, end
    return begin, end


def _span(text: str) -> tuple[float, float]:
    """When a year, month or day begins and ends, in local time."""
    found = DATE.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        year, month, day = (int(part) if part else 0 for part in found.groups())
        begin = datetime(year, month or 1, day or 1)
        if day:
            end = datetime.fromordinal(begin.toordinal() + 1)
        else:
            end = datetime(year + (month or 12) // 12, month % 12 + 1 if month else 1, 1)
        return begin.astimezone().timestamp(), end.astimezone().timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidValueError(f"'{text}' is no date; write 2026, 2026-11 or 2026-11-22.") from error
