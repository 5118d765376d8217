"""The controls of a form that makes images, made from the rows of the table of parameters."""

from collections.abc import Collection
from itertools import groupby
from typing import Any

import gradio as gr

from modules.api.schema.name_lists import NAMES
from modules.processing.request.parameters import MAX_EXACT, UNSET, Choices, Parameter, Section, Tab
from modules.services import Services
from modules.ui.form.form import ROWS, TAB_NAMES
from modules.ui.form.seed_field import SeedField

Components = dict[str, gr.components.Component]


def choices_of(row: Parameter, services: Services) -> list[str]:
    """The names that a parameter may have, as they are now; the word for none first, where none is allowed."""
    assert row.choices is not None, f"{row.key} chooses from no list"
    return [*([row.nothing] if row.is_optional else []), *NAMES[row.choices](services)]


class Controls:
    """Builds controls for one tab, each where the caller is in Gradio's layout; `form` has those that are built."""

    def __init__(self, services: Services, tab: Tab) -> None:
        self.form: Components = {}
        self.prefix = TAB_NAMES[tab]
        self._services = services
        self._tab = tab

    def build(self, *keys: str) -> None:
        """The controls of these parameters."""
        for key in keys:
            self.form[key] = self._told_of(ROWS[key])

    def build_rest(self, section: Section, lines: Collection[int] | None = None) -> None:
        """The controls of a section that are not built yet, those of one line side by side."""
        rows = [row for row in ROWS.values() if row.control is not None and row.control.section is section]
        rows = [row for row in rows if self._tab in row.tabs and row.key not in self.form]
        rows = [row for row in rows if lines is None or _line(row) in lines]
        for _, beside in groupby(sorted(rows, key=_line), _line):
            keys = [row.key for row in beside]
            if len(keys) == 1:
                self.build(*keys)
                continue
            with gr.Row():
                self.build(*keys)

    def _told_of(self, row: Parameter) -> gr.components.Component:
        """A control, of which scripts are notified before and after."""
        label = row.control.label if row.control else ""
        self._services.scripts.component(None, row.elem_id(self.prefix), label)
        component = self._component(row)
        self._services.scripts.component(component, row.elem_id(self.prefix), label)
        return component

    def _component(self, row: Parameter) -> gr.components.Component:
        control = row.control
        assert control is not None, f"{row.key} is not shown in a form"
        common: dict[str, Any] = {"label": control.label, "elem_id": row.elem_id(self.prefix)}
        if control.hint:
            common["info"] = control.hint
        if row.choices is not None:
            return self._dropdown(row, common)
        value: Any = row.default if control.value is UNSET else control.value
        if row.words:
            # As plain numbers: that is what the browser sends back.
            return gr.Radio([(word, place) for place, word in enumerate(row.words)], value=int(value), **common)
        if row.type is bool:
            return gr.Checkbox(value, **common)
        if control.slider is not None:
            low, high, step = control.slider.lowest, control.slider.highest, control.slider.step
            return gr.Slider(low, high, value=value, step=step, **common)
        if row.type is int and row.high is not None and row.high > MAX_EXACT:
            return SeedField(value, **common)
        if row.type in (int, float):
            return gr.Number(value=value, precision=0 if row.type is int else None, **common)
        return gr.Textbox(lines=control.text_lines, placeholder=control.placeholder or None, **common)

    def _dropdown(self, row: Parameter, common: dict[str, Any]) -> gr.components.Component:
        choices = choices_of(row, self._services)
        if row.type is tuple:
            return gr.Dropdown(choices, multiselect=True, **common)
        is_custom = row.choices is Choices.CHECKPOINTS  # a file may come later than the page
        value = row.nothing if row.default is None else row.default
        return gr.Dropdown(choices, value=value, allow_custom_value=is_custom, **common)


def _line(row: Parameter) -> int:
    return row.control.line if row.control else 0
