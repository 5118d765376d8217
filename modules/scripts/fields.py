"""Always-on scripts made of rows: controls, checks of arguments, what an infotext gives back, and axes of grids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from modules.errors import InvalidValueError
from modules.postprocessing.operation import Field as Field
from modules.scripts.axes import Axis, add_axis
from modules.scripts.form_operations import control_of
from modules.scripts.job import Job
from modules.scripts.script import AlwaysVisible, Script


class FieldScript(Script):
    """A script that takes part in every job whose first row, a switch, is on. A subclass sets `rows`, whose order is
    that of the arguments, and asks `values` for what a job has."""

    rows: tuple[Field, ...] = ()
    hidden: tuple[str, ...] = ()
    """Rows without a control on the page: for calling programs."""
    infotext_switch: str = ""
    """The infotext's field that says that it is on; without one, each of the rows' fields says so."""

    def show(self, is_img2img: bool) -> object:
        """On both tabs."""
        return AlwaysVisible

    def ui(self, is_img2img: bool) -> list[Any]:
        """A control for each row."""
        tab = "img2img" if is_img2img else "txt2img"
        found = {row.name: control_of(row, self.program.pixel_upscalers(), f"{tab}_{row.elem_id}") for row in self.rows}
        for name in self.hidden:
            found[name].visible = "hidden"
        sources: dict[str, str | Callable[[Mapping[str, Any]], Any]] = {
            row.name: self.pasting(row) or row.infotext for row in self.rows[1:]
        }
        switch = self.rows[0].name
        keys = {self.infotext_switch} if self.infotext_switch else {row.infotext for row in self.rows if row.infotext}
        self.infotext_fields = [
            (found[switch], lambda parsed: bool(keys & parsed.keys())),
            *((found[name], source) for name, source in sources.items() if source),
        ]
        return list(found.values())

    def pasting(self, row: Field) -> Callable[[Mapping[str, Any]], Any] | None:
        """Return what makes a row's value of the fields of an infotext, where that is not the value of the row's own
        field."""
        return None

    def read_args(self, args: Sequence[Any], title: str) -> Sequence[Any]:
        """In the order of the rows; None and what is left out at the end are the rows' defaults."""
        return self.checked(args, title)

    def checked(self, args: Sequence[Any], title: str = "") -> list[Any]:
        """A value for each row, in its type. Raises `InvalidValueError`."""
        title = title or self.title()
        if len(args) > len(self.rows):
            names = ", ".join(row.label for row in self.rows)
            raise InvalidValueError(
                f"{title} takes {len(self.rows)} arguments, {len(args)} were given. They are: {names}."
            )
        values = []
        for row, value in zip(self.rows, [*args, *([None] * (len(self.rows) - len(args)))], strict=True):
            try:
                values.append(row.default if value is None else row.check(_typed(row, value)))
            except InvalidValueError as error:
                raise InvalidValueError(f"{title}: {error}") from error
        return values

    def values(self, p: Job, args: Sequence[Any]) -> dict[str, Any] | None:
        """The values of a job by the rows' names, those of a grid's axes instead of the form's; None where it is off.
        Raises `InvalidValueError`."""
        own = p.script_values.get(self.title(), {})
        values = dict(zip((row.name for row in self.rows), self.checked(args), strict=True)) | own
        return values if values[self.rows[0].name] else None

    def add_axes(self, *names: str) -> None:
        """An axis for each of these rows. At the top level of the script's file."""
        for row in self.rows:
            if row.name in names:
                add_axis(self._axis(row))

    def _axis(self, row: Field) -> Axis:
        def read(text: str) -> Any:
            if isinstance(row.default, str):
                return row.check(text)
            try:
                number = float(text)
            except ValueError as error:
                raise InvalidValueError(f"{text!r} is no number.") from error
            return row.check(int(number) if isinstance(row.default, int) else number)

        def apply(p: Job, value: Any, values: Sequence[Any]) -> None:
            mine = p.script_values.get(self.title(), {})
            p.script_values = {**p.script_values, self.title(): {**mine, self.rows[0].name: True, row.name: value}}

        is_number = not isinstance(row.default, str)
        choices = row.choices if isinstance(row.choices, tuple) else None
        return Axis(
            f"[{self.title()}] {row.label}",
            read,
            apply,
            is_number=is_number,
            choices=(lambda program: list(choices)) if choices else None,
        )


def truths(args: Sequence[Any]) -> list[Any]:
    """Return arguments with "True" and "False", which some calling programs send, as what they say."""
    words = {"True": True, "False": False}
    return [words.get(one, one) if isinstance(one, str) else one for one in args]


def _typed(row: Field, value: Any) -> Any:
    """Return a text of a calling program ("True", "0.5", a choice in another case) as the value it stands for."""
    if not isinstance(value, str) or value == row.default:
        return value
    if isinstance(row.default, bool):
        return truths([value.strip().capitalize()])[0] if value else value
    if isinstance(row.default, int | float):
        try:
            return type(row.default)(value)
        except ValueError:
            return value
    if isinstance(row.choices, tuple):
        return next((one for one in row.choices if str(one).lower() == value.lower()), value)
    return value


def switch(elem_id: str) -> Field:
    """The first row of a script."""
    return Field(name="enabled", label="Enable", default=False, elem_id=f"{elem_id}_enabled")


def portion(name: str, label: str, default: float, elem_id: str, **more: Any) -> Field:
    """A number from 0 to 1."""
    row = Field(name=name, label=label, default=default, elem_id=elem_id, low=0.0, high=1.0, step=0.01)
    return replace(row, **more)
