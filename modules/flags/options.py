"""How a field of `Flags` says what it looks like on the command line: group, help, parser and allowed values.

Standard library only: the launcher reads these before any package is installed.
"""

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
Parse = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One command-line option. `parse` turns one word into a value; None marks a switch that takes no value.

    `many` is "" for one value, "?" for one that may be left out, "+" for several words after one flag, "append" for a
    flag that may be repeated; the last two arrive as a tuple.
    """

    group: str
    help: str
    parse: Parse | None = None
    choices: tuple[str, ...] = ()
    many: str = ""
    metavar: str | None = None


_KEY = "option"


def option_of(attribute: "Field[Any]") -> Option:
    """The `Option` that `switch`, `value` or `values` attached to a dataclass field."""
    option = attribute.metadata[_KEY]
    assert isinstance(option, Option)
    return option


def _metadata(option: Option) -> Mapping[str, object]:
    return {_KEY: option}


def switch(group: str, help_text: str) -> bool:
    """A flag without a value: off unless given."""
    return field(default=False, metadata=_metadata(Option(group=group, help=help_text)))


def value(
    group: str,
    help_text: str,
    default: T,
    parse: Parse = str,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    many: str = "",
) -> T:
    """A flag with one value; typed like its default. With `many` "?" the value may be left out and is "" then."""
    option = Option(group=group, help=help_text, parse=parse, choices=choices, metavar=metavar, many=many)
    return field(default=default, metadata=_metadata(option))


def folder(group: str, help_text: str) -> str | None:
    """A flag that names a folder; kept as typed."""
    return value(group, help_text, None, metavar="FOLDER")


def file(group: str, help_text: str) -> str | None:
    """A flag that names a file; kept as typed."""
    return value(group, help_text, None, metavar="FILE")


def values(
    group: str,
    help_text: str,
    many: str,
    parse: Parse = str,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
) -> tuple[str, ...]:
    """A flag with several values: `many` as in `Option`. Not given: an empty tuple."""
    option = Option(group=group, help=help_text, parse=parse, choices=choices, many=many, metavar=metavar)
    return field(default=(), metadata=_metadata(option))


def whole_number(low: int, high: int | None = None) -> Parse:
    """A parser for an integer from `low` to `high` (both included; no upper bound without `high`)."""

    def parse(text: str) -> int:
        allowed = f"a whole number from {low} to {high}" if high is not None else f"a whole number, at least {low}"
        try:
            number = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not {allowed}") from None
        if number < low or (high is not None and number > high):
            raise ArgumentTypeError(f"{text!r} is not {allowed}")
        return number

    return parse


def lower(text: str) -> str:
    """Names that are given in any case."""
    return text.lower()


def upper(text: str) -> str:
    """Names that are given in any case and are customarily written in capitals."""
    return text.upper()


def credentials_text(text: str) -> str:
    """Check "user:password[,user:password]" and keep it as it is; the message never repeats the value."""
    if not parse_credentials(text) or any(not user for user, _ in parse_credentials(text)):
        raise ArgumentTypeError("expected user:password, or several of them separated by commas")
    return text


def parse_credentials(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of user and password from "user:password,user:password"; newlines count as commas (password files).

    A password may contain colons, not commas. A piece without a colon has an empty user, which no caller accepts.
    """
    pieces = (piece.strip() for piece in text.replace("\n", ",").split(","))
    return tuple((user, rest) if colon else ("", user) for user, colon, rest in (p.partition(":") for p in pieces if p))
