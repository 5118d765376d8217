"""One setting: its key in config.json, how the page shows it, and which values it takes."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeAlias

SettingValue: TypeAlias = bool | int | float | str | tuple[str, ...] | None
"""Immutable on purpose: a running job keeps the values it began with. Lists of JSON become tuples."""


LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a UTF-16 pair. JSON can write it (`"\\ud800"`), and Python reads it, but no file or reply can hold it."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")


class SettingType(StrEnum):
    """The type of a setting's value, which is also what the page draws for it."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    TEXT = "text"
    COLOR = "color"  # "#rrggbb"
    CHOICE = "choice"  # one of `choices`
    LIST = "list"  # any number of `choices`, or free strings where there are none


@dataclass(frozen=True)
class AskedChoices:
    """Choices that a function gives whenever they are shown, so that other texts are taken, too; of other types than
    choices none. `refresh`: what looks again for what there is; None: nothing has to."""

    ask: Callable[[], tuple[str, ...]]
    refresh: Callable[[], object] | None = None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A group of settings on the settings page. `id`, `title` and `category` are those users know."""

    id: str
    title: str
    category: str = ""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting.

    `choices` is a tuple of allowed values, or the name of a provider ("checkpoints") that the edge resolves, or a
    function of an extension: then any text is accepted here. `infotext` is the field that records the value in an
    image, `infotext_aliases` are other names under which images carry it. `hidden` settings are accepted and kept, but
    not shown, because they have no effect. `optional` settings may also be null. `affects_image`: an image depends on
    it, so that images record it, other servers are sent it, and a job goes on within an image only while it is the
    same. `affects_encoding`: what a prompt is encoded to depends on it, and with that the image.
    """

    key: str
    label: str
    default: SettingValue
    type: SettingType
    section: Section
    choices: tuple[str, ...] | str | AskedChoices | None = None
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    hint: str = ""
    infotext: str | None = None
    infotext_aliases: tuple[str, ...] = ()
    needs_reload: bool = False
    api_writable: bool = True
    by_hand: bool = False  # only config.json takes it, while no server runs: it runs programs
    hidden: bool = False
    optional: bool = False
    affects_image: bool = False
    affects_encoding: bool = False

    def __post_init__(self) -> None:
        if self.affects_encoding and not self.affects_image:
            raise ValueError(f"Setting {self.key!r} affects what prompts are encoded to, but no image.")
        if self.default != self.check(self.default):
            raise ValueError(f"The default of setting {self.key!r} is not of its own type: {self.default!r}.")

    def check(self, value: object) -> SettingValue:
        """The value in this setting's type. Raises ValueError with a sentence that says what is allowed.

        Whole numbers are taken for an int and for a float, because clients send 80.0 for 80.
        """
        if value is None and self.optional:
            return None
        match self.type:
            case SettingType.BOOL:
                return self._check_bool(value)
            case SettingType.INT | SettingType.FLOAT:
                return self._check_number(value)
            case SettingType.LIST:
                return self._check_list(value)
            case SettingType.COLOR:
                return self._check_color(value)
            case _:
                return self._check_text(value)

    def from_text(self, text: str) -> SettingValue:
        """The value that an infotext writes as `text`. Raises ValueError as `check` does."""
        stripped = text.strip()
        if self.type is SettingType.BOOL:
            if stripped.lower() not in ("true", "false"):
                raise self._bad(text, "True or False")
            return stripped.lower() == "true"
        if self.type in (SettingType.INT, SettingType.FLOAT):
            try:
                number = float(stripped)
            except ValueError as error:
                raise self._bad(text, "a number") from error
            return self.check(int(stripped) if _WHOLE.fullmatch(stripped) else number)
        return self.check(text)

    def _bad(self, value: object, allowed: str) -> ValueError:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return ValueError(f"{self.key} is {shown}, but takes {allowed}")

    def _check_bool(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise self._bad(value, "true or false")
        return value

    def _check_number(self, value: object) -> int | float:
        whole = self.type is SettingType.INT
        allowed = f"a {'whole ' if whole else ''}number{self._range_text()}"
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._bad(value, allowed)
        if whole and value != int(value):
            raise self._bad(value, allowed)
        too_small = self.minimum is not None and value < self.minimum
        too_large = self.maximum is not None and value > self.maximum
        if too_small or too_large:
            raise self._bad(value, allowed)
        return int(value) if whole else value  # 10 stays 10, as it is written into the image

    def _range_text(self) -> str:
        if self.minimum is not None and self.maximum is not None:
            return f" from {self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None:
            return f" of at least {self.minimum:g}"
        return ""

    def _check_text(self, value: object) -> str:
        if not isinstance(value, str):
            raise self._bad(value, "a text")
        self._check_storable(value)
        if isinstance(self.choices, tuple) and value not in self.choices:
            near = get_close_matches(value, self.choices, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise self._bad(value, f"one of {', '.join(map(repr, self.choices))}{hint}")
        return value

    def _check_list(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self._bad(value, "a list of texts")
        for item in value:
            self._check_storable(item)
        if isinstance(self.choices, tuple):
            unknown = [item for item in value if item not in self.choices]
            if unknown:
                raise self._bad(value, f"a list of {', '.join(map(repr, self.choices))}")
        return tuple(value)

    def _check_storable(self, text: str) -> None:
        """No path or file can hold null characters and lone surrogates."""
        problem = why_not_storable(text)
        if problem:
            raise ValueError(f"{self.key} holds {problem}; remove it")

    def _check_color(self, value: object) -> str:
        text = value if isinstance(value, str) else ""
        digits = text.removeprefix("#")
        if len(text) != 7 or len(digits) != 6 or not all(c in "0123456789abcdefABCDEF" for c in digits):
            raise self._bad(value, 'a color such as "#ffffff"')
        return text


def why_not_storable(text: str) -> str | None:
    """Return what keeps a text out of files and paths, as the end of "it holds ..."; None for one that can be
    stored."""
    if "\0" in text:
        return f"a null character at position {text.index(chr(0))}"
    lone = LONE_SURROGATE.search(text)
    return f"half of a surrogate pair (\\u{ord(lone.group()):04x}) at position {lone.start()}" if lone else None
