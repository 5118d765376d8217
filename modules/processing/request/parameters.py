"""Rows of the table of parameters, and how they are read from the dataclasses of a request.

A row stands at the field that it describes: `steps: Annotated[int, Parameter(...)] = 20`. Name, type and default are
the field's own, the rest is the row's. The form, the API's schema, the script object, the command line, pasting,
infotexts and the axes of grids are made from the rows; for a new parameter nothing else changes but the code that uses
it. The rows themselves are in `processing.request.request`. No torch and no Gradio in here: all edges import it.
"""

import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum, Flag, IntEnum, auto
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from modules.errors import InvalidValueError
from modules.images.infotext import InfotextValue

MAX_PROMPT_CHARS = 200_000
MAX_EXACT = 2**53  # whole numbers beyond are rounded by floats, in browsers too


class Tab(Flag):
    """The ways of making images; a parameter applies to some of them."""

    TXT2IMG = auto()
    IMG2IMG = auto()


BOTH = Tab.TXT2IMG | Tab.IMG2IMG


class Section(Enum):
    """The part of the form in which a control stands."""

    PROMPTS = auto()
    SAMPLING = auto()
    SEED = auto()
    SEED_EXTRAS = auto()
    HIRES = auto()
    REFINER = auto()
    IMAGE = auto()  # how an image is started from
    MASK = auto()
    OUTPAINT = auto()


class Choices(Enum):
    """Lists of names that only the running program knows; an edge looks them up."""

    SAMPLERS = auto()
    SCHEDULES = auto()
    UPSCALERS = auto()
    CHECKPOINTS = auto()
    STYLES = auto()


class Unset(Enum):
    """The default of the field holds."""

    UNSET = auto()


UNSET = Unset.UNSET


@dataclass(frozen=True, kw_only=True)
class Slider:
    """The range that the form offers, which may be narrower than what is allowed."""

    lowest: float
    highest: float
    step: float


@dataclass(frozen=True, kw_only=True)
class Control:
    """How the form shows a parameter. In `elem_id`, `{tab}` stands for txt2img or img2img. Controls with the same
    `line` of a section are next to each other.

    `labels` are the words for the members of an enum in their order, or for False and True; the choice is shown as
    radio buttons then. `value` is what the form begins with, where that is not the default. `hint` is always shown;
    `help` says in plain words what it is for and what a larger or smaller value does, where the pointer rests.
    """

    elem_id: str
    label: str
    section: Section
    line: int = 0
    hint: str = ""
    help: str = ""
    slider: Slider | None = None
    text_lines: int = 1
    placeholder: str = ""
    labels: tuple[str, ...] = ()
    value: Any = UNSET


@dataclass(frozen=True, kw_only=True)
class Infotext:
    """The key under which an image records the parameter. `Size-1` and `Size-2` are the two sides of `Size: 512x768`.

    `written` says for the request (or its part) that has the field whether the value is written. Without it the value
    is not the field's own (a name in full, a hash): `modules.processing.record` writes it. `is_pasted` is false where
    a setting takes the value instead.
    """

    key: str
    written: Callable[[Any], bool] | None = None
    is_pasted: bool = True


@dataclass(frozen=True, kw_only=True)
class Option:
    """The option of the command line. Its default is the field's, unless it says another one."""

    name: str
    metavar: str | None = None
    help: str | None = None
    default: object = UNSET


@dataclass(frozen=True, kw_only=True)
class ParameterAxis:
    """The axis of an X/Y/Z plot."""

    label: str
    shows_label: bool = True  # above a column, next to the value


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One row. What is None or empty does not exist for this parameter."""

    low: float | None = None  # the smallest and the largest allowed number; a request with another one is refused
    high: float | None = None
    title: str = ""  # in error messages; empty: the name, underscores as blanks
    nothing: str = ""  # the word of form and API for None; the empty text is another one
    choices: Choices | None = None
    control: Control | None = None
    api: str = ""  # the name of the API's field, and of the attribute of the reference UI's StableDiffusionProcessing
    api_default: Any = UNSET  # as the API's schema says it, where it is not the field's
    api_null: Any = UNSET  # what null means where null is the default; the field's default, unless it says another one
    is_clamped: bool = False  # the API raises values below `low` to it
    infotext: Infotext | None = None
    option: Option | None = None
    axis: ParameterAxis | None = None
    needs_memory: bool = False  # the memory estimate depends on it
    # from the field and its part of the request, filled in by `rows_of`
    tabs: Tab = BOTH
    name: str = ""
    prefix: str = ""  # of the part of the request that has the field: "hires_"
    type: type = str
    is_optional: bool = False
    default: Any = None

    @property
    def key(self) -> str:
        """A name that no other parameter has: `scale` of the second pass is `hires_scale`."""
        return self.prefix + self.name

    @property
    def message_name(self) -> str:
        """The name for error messages."""
        return self.title or self.key.replace("_", " ")

    @property
    def is_text(self) -> bool:
        """Whether any text is allowed, not only the names of a list."""
        return self.type is str and self.choices is None

    @property
    def words(self) -> tuple[str, ...]:
        """Return, for an enum or a flag, what form and infotext call the value of each number; empty for others."""
        return self.control.labels if self.control else ()

    def elem_id(self, tab: str) -> str:
        """The id of the control on a tab of the page; empty without a control."""
        return self.control.elem_id.format(tab=tab) if self.control else ""

    def check(self, value: object) -> None:
        """Raise `InvalidValueError` for a value that no model could serve."""
        if self.is_text and isinstance(value, str):
            _check_text(self.message_name, value)
        if self.low is None or self.high is None or (value is None and self.is_optional):
            return
        if not (isinstance(value, int | float) and math.isfinite(value) and self.low <= value <= self.high):
            raise InvalidValueError(f"{self.message_name} is {value!r}; allowed is {self.low} to {self.high}.")

    def from_form(self, value: Any) -> Any:
        """Convert the value of a control to the type of the field; an emptied one has the default. Raises ValueError
        and `InvalidValueError`."""
        if self.is_optional:
            return None if value in (None, "", self.nothing) else self._typed(value)
        if value is None or value == "":
            return self.default
        return self._typed(value)

    def from_api(self, value: Any) -> Any:
        """Convert a value of the API, already of the right type; null has the API's default."""
        if self.is_optional:
            return None if value in (None, "", self.nothing) else value
        if value is None:
            value = self.api_null if self.api_default is None else self.api_default
        if self.type is tuple:
            return tuple(value)
        if self.words:
            return self._numbered(value)
        return max(value, self.low) if self.is_clamped and self.low is not None else value

    def from_text(self, text: InfotextValue) -> Any:
        """Convert a value of an infotext. Raises ValueError and TypeError for text that is no value."""
        if self.is_optional and text in ("", self.nothing):
            return None
        return number(str(text)) if self.type is float else self._typed(text)

    def shown(self, value: Any) -> Any:
        """A value as form and infotext show it."""
        return self.words[int(value)] if self.words else value

    def _place(self, word: str) -> int:
        """The number of a word, in any case; raises `InvalidValueError` that lists the words."""
        lowered = [known.lower() for known in self.words]
        if word.lower() not in lowered:
            raise InvalidValueError(f"{self.message_name} is {word!r}; allowed are {', '.join(self.words)}.")
        return lowered.index(word.lower())

    def _numbered(self, number: int) -> Any:
        """The enum or flag of a number; raises `InvalidValueError` for one that it does not have."""
        if issubclass(self.type, IntEnum) and number not in [member.value for member in self.type]:
            allowed = ", ".join(str(member.value) for member in self.type)
            raise InvalidValueError(f"{self.api or self.key} is {number}; allowed are {allowed}.")
        return self.type(number)

    def _typed(self, value: Any) -> Any:
        if self.type is tuple:
            return tuple(value)
        if self.words and isinstance(value, str):
            return self._numbered(self._place(value))
        if self.type is bool and isinstance(value, str):
            return value.strip().lower() == "true"
        if self.type is float and isinstance(value, int | float):
            return value  # 7 stays 7, as it is written into the image
        if self.type is int and isinstance(value, str):
            try:
                return whole_number(value)
            except ValueError:
                raise InvalidValueError(f"{self.message_name} is {value!r}, which is no whole number.") from None
        return self.type(value)


def whole_number(text: str) -> int:
    """A whole number, exactly as it is written, or in another form, such as 1e3. Raises ValueError for other text."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not (value.is_integer() and abs(value) < MAX_EXACT):
            raise ValueError(f"{text!r} is no whole number") from None
        return int(value)


def number(text: str) -> int | float:
    """A number as it is written: 7 is whole and 7.0 is not. Raises ValueError for other text."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def rows_of(owner: type, prefix: str = "", tabs: Tab = BOTH) -> tuple[Parameter, ...]:
    """Return the rows at the fields of a dataclass, in their order, with name, type and default filled in; all of them
    apply to `tabs`."""
    return _rows_of(owner, prefix, tabs)


@cache
def _rows_of(owner: type, prefix: str, tabs: Tab) -> tuple[Parameter, ...]:
    hints = get_type_hints(owner, include_extras=True)
    rows = []
    for field in fields(owner):
        hint = hints[field.name]
        row = next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Parameter)), None)
        if row is not None:
            type_, is_optional = _type_of(get_args(hint)[0])
            row = replace(row, tabs=tabs, name=field.name, prefix=prefix, type=type_, is_optional=is_optional)
            rows.append(_with_default(row, field.default))
    return tuple(rows)


def _with_default(row: Parameter, default: Any) -> Parameter:
    api_default = default if row.api_default is UNSET else row.api_default
    api_null = default if row.api_null is UNSET else row.api_null
    return replace(row, default=default, api_default=api_default, api_null=api_null)


def check_values(owner: Any, prefix: str = "") -> None:
    """Check the fields of an object. Raises `InvalidValueError` for the first that is not allowed."""
    for row in rows_of(type(owner), prefix):
        row.check(getattr(owner, row.name))


def infotext_fields(owner: Any, rows: Iterable[Parameter]) -> dict[str, object]:
    """Return what an image records of an object's fields, by infotext key; both sides of a size as one field."""
    found: dict[str, object] = {}
    for row in rows:
        if row.infotext is None or row.infotext.written is None or not row.infotext.written(owner):
            continue
        value = row.shown(getattr(owner, row.name))
        key, _, side = row.infotext.key.rpartition("-")
        if side == "1":
            found[key] = value
        elif side == "2":
            found[key] = f"{found[key]}x{value}"
        else:
            found[row.infotext.key] = value
    return found


def pasted_fields(parsed: Mapping[str, InfotextValue], rows: Iterable[Parameter]) -> dict[str, Any]:
    """Values by the names of the fields, from a parsed infotext. What is no value of its type is left out."""
    values: dict[str, Any] = {}
    for row in rows:
        if row.infotext is not None and row.infotext.is_pasted and row.infotext.key in parsed:
            text = parsed[row.infotext.key]
            try:
                values[row.name] = row.from_text(text)
            except (TypeError, ValueError, InvalidValueError):
                continue  # pasted text may come from anywhere; the rest of it is still good
    return values


def _type_of(hint: Any) -> tuple[type, bool]:
    """`str | None` as (str, True); `tuple[str, ...]` as (tuple, False)."""
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not type(None)]
        return _type_of(parts[0])[0], len(parts) < len(get_args(hint))
    if get_origin(hint) is Annotated:
        return _type_of(get_args(hint)[0])
    return get_origin(hint) or hint, False


def _check_text(name: str, text: str) -> None:
    if "\0" in text:
        raise InvalidValueError(f"{name} holds a null character at position {text.index(chr(0))}; remove it.")
    if len(text) > MAX_PROMPT_CHARS:
        raise InvalidValueError(f"{name} is {len(text)} characters long; allowed are {MAX_PROMPT_CHARS}. Shorten it.")
