"""The module that extensions look for among `scripts.scripts_data` to add axes of the X/Y/Z plot."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import Any, SupportsIndex

from modules.errors import InvalidValueError
from modules.scripts.acting import acting_now
from modules.scripts.axes import AXES, Axis, split_words
from modules.scripts.program import Program


class AxisOption:
    """One axis: `type` turns a written value into one, `apply(p, value, values)` puts it into a job, `choices()` lists
    what can be picked, `confirm(p, values)` raises for values that are none."""

    def __init__(
        self,
        label: str,
        type: Callable[[str], Any],
        apply: Callable[[Any, Any, Sequence[Any]], Any],
        format_value: Callable[[Any, AxisOption, Any], Any] | None = None,
        confirm: Callable[[Any, Sequence[Any]], Any] | None = None,
        cost: float = 0.0,
        choices: Callable[[], Sequence[Any]] | None = None,
        prepare: Callable[[str], Sequence[Any]] | None = None,
        is_img2img: bool = False,
    ) -> None:
        self.label = label
        self.type = type
        self.apply = apply
        self.format_value = format_value or format_value_add_label
        self.confirm = confirm
        self.cost = cost
        self.choices = choices
        self.prepare = prepare
        self.is_img2img = is_img2img


class AxisOptionImg2Img(AxisOption):
    """An axis for img2img."""


class AxisOptionTxt2Img(AxisOption):
    """An axis for txt2img."""


def as_axis(option: AxisOption, extension: str) -> Axis:
    """The program's axis of an option."""
    listed = option.choices

    def read(text: str) -> Any:
        try:
            return option.type(text)
        except (TypeError, ValueError) as error:
            raise InvalidValueError(f"{option.label}: {text!r} is no value of this axis ({error}).") from error

    def choices(program: Program) -> list[str]:
        return [str(one) for one in listed()] if listed is not None else []

    def apply(p: Any, value: Any, values: Sequence[Any]) -> None:
        if option.confirm is not None:
            option.confirm(p, [value])
        option.apply(p, value, values)

    return Axis(
        option.label,
        read,
        apply,
        cost=option.cost,
        choices=choices if listed is not None else None,
        is_number=option.type in (int, float),
        show=lambda value: str(option.format_value(None, option, value)),
        shows_label=False,
        extension=extension,
    )


class AxisOptions(list[AxisOption]):
    """`axis_options`: those of the program by label, and those that extensions add."""

    def append(self, option: AxisOption) -> None:
        """Add an axis; one of a label that is there takes its place in this list only."""
        super().append(option)
        author = acting_now()
        if option.label not in AXES:
            AXES.add(option.label, as_axis(option, author.extension if author is not None else "extensions"))

    def extend(self, options: Iterable[AxisOption]) -> None:
        """Add several."""
        for option in options:
            self.append(option)

    def insert(self, index: SupportsIndex, option: AxisOption) -> None:
        """Add one; new ones stand behind those of the program."""
        self.append(option)

    def __iadd__(self, options: Iterable[AxisOption]) -> AxisOptions:  # type: ignore[override,misc]
        self.extend(options)
        return self


def apply_field(field: str) -> Callable[[Any, Any, Any], None]:
    """An `apply` that sets an attribute of the job."""
    return lambda p, x, xs: setattr(p, field, x)


def apply_override(field: str, boolean: bool = False) -> Callable[[Any, Any, Any], None]:
    """An `apply` that overrides a setting for the job."""

    def apply(p: Any, x: Any, xs: Any) -> None:
        p.override_settings[field] = str(x).lower() == "true" if boolean else x

    return apply


def boolean_choice(reverse: bool = False) -> Callable[[], list[str]]:
    """The choices of a switch."""
    return lambda: ["False", "True"] if reverse else ["True", "False"]


def format_value_add_label(p: Any, opt: AxisOption, x: Any) -> str:
    """A value with the axis before it."""
    return f"{opt.label}: {round(x, 8) if isinstance(x, float) else x}"


def format_value(p: Any, opt: AxisOption, x: Any) -> Any:
    """A value alone."""
    return round(x, 8) if isinstance(x, float) else x


def format_value_join_list(p: Any, opt: AxisOption, x: Any) -> str:
    """A list as text."""
    return ", ".join(x)


def format_nothing(p: Any, opt: AxisOption, x: Any) -> str:
    """No caption."""
    return ""


def format_remove_path(p: Any, opt: AxisOption, x: str) -> str:
    """The name of a file."""
    return x.replace("\\", "/").rsplit("/", 1)[-1]


def do_nothing(p: Any, x: Any, xs: Any) -> None:
    """An `apply` that changes nothing."""


def str_permutations(x: Any) -> Any:
    """The type of an axis over orders of words."""
    return x


def list_to_csv_string(data_list: Sequence[Any]) -> str:
    """A list as one line of comma-separated values."""
    out = StringIO()
    csv.writer(out).writerow(data_list)
    return out.getvalue().strip()


def csv_string_to_list_strip(data_str: str) -> list[str]:
    """The inverse."""
    return split_words(data_str)


def _of_program(label: str) -> AxisOption:
    axis = AXES.get(label)
    return AxisOption(label, axis.read, axis.apply, cost=axis.cost)


axis_options = AxisOptions(_of_program(label) for label in AXES)
