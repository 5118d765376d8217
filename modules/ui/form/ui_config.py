"""`ui-config.json`: defaults, ranges and visibility of the page's controls, under the reference UI's names.

A key is "TAB/LABEL/FIELD", such as `txt2img/Sampling steps/value`; fields are value, visible, and for sliders minimum,
maximum and step. Of controls with the same label on a tab the first counts. What a control cannot take is left out and
named; keys of controls that are not here are kept as they are.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradio as gr

from modules.system.atomic_files import output_error, write_atomic
from modules.system.bounded import read_json_file
from modules.system.texts import page_text
from modules.ui.form.old_defaults import current_entries
from modules.ui.form.seed_field import SeedField

log = logging.getLogger(__name__)

TABS = ("txt2img", "img2img", "extras", "modelmerger")
MAX_FILE_BYTES = 4_000_000
CONFIGURED = "fw-configured"
"""The class of controls whose value stands in the file, which no model's own default replaces."""

_RANGE = ("minimum", "maximum", "step")
_VALUED = (gr.Slider, gr.Radio, gr.Checkbox, gr.Textbox, gr.Number, gr.Dropdown)


def read_ui_config(file: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The entries of the file, and what is wrong with it; nothing is raised."""
    if not file.exists():
        return {}, ()
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES // 1_000_000} MB")
        read = read_json_file(file, constant=float)
        if not isinstance(read, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        return {}, (
            page_text(f"{file.name} was left out: {error}. The page has its own defaults; correct or delete {file}."),
        )
    return read, ()


@dataclass
class UiConfig:
    """The file and the controls that it is about."""

    file: Path
    controls: dict[str, gr.components.Component] = field(default_factory=dict)
    """By "TAB/LABEL"."""
    own: dict[str, Any] = field(default_factory=dict)
    """The page's own defaults, by the file's keys."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """Those that hold: the page's own with the file's."""

    def apply(self, page: gr.Blocks) -> tuple[str, ...]:
        """Change the controls of a page that is built and not yet served; returns what could not be taken."""
        stored, faults = read_ui_config(self.file)
        entries = current_entries(stored)
        found = list(faults)
        for name, control in controls_of(page):
            if name in self.controls:
                continue
            self.controls[name] = control
            for key in _fields_of(control):
                entry = f"{name}/{key}"
                self.own[entry] = self.defaults[entry] = _default_of(control, key)
                if entry not in entries:
                    continue
                problem = _problem(control, key, entries[entry])
                if problem:
                    found.append(f"{self.file.name}: {entry} was left out: {problem}.")
                    continue
                is_seed = isinstance(control, SeedField) and key == "value"
                setattr(control, key, str(entries[entry]) if is_seed else entries[entry])
                self.defaults[entry] = entries[entry]
                if key == "value":
                    control.elem_classes = [*(control.elem_classes or []), CONFIGURED]
        for fault in found:
            log.warning("%s", fault)
        return tuple(found)

    @property
    def names(self) -> list[str]:
        """List the names of the controls that have a value."""
        return [name for name in self.controls if f"{name}/value" in self.own]

    def changes(self, values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return what a form's values, by name, change of the defaults: key -> default and value. Values are as Gradio
        hands them to functions: a control may give the place of what is chosen instead of its name."""
        keys = {f"{name}/value": _named(self.controls[name], value) for name, value in values.items()}
        return {key: (self.defaults[key], value) for key, value in keys.items() if not _same(self.defaults[key], value)}

    def save(self, entries: Mapping[str, Any]) -> None:
        """Put entries into the file; None takes one out. Those of other programs and controls stay.

        Raises `OutputError` where the file cannot be written. A file that cannot be read is replaced.
        """
        stored, _ = read_ui_config(self.file)
        stored |= entries
        kept = {key: value for key, value in stored.items() if value is not None}
        text = json.dumps(kept, indent=4, ensure_ascii=False) + "\n"
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.file, text.encode())
        except OSError as error:
            raise output_error(self.file.name, self.file.parent, error) from error
        self.defaults |= {key: value for key, value in entries.items() if value is not None and key in self.defaults}

    def problem(self, entry: str, value: Any) -> str:
        """Why a control cannot take a value; empty where it can."""
        name, _, key = entry.rpartition("/")
        return _problem(self.controls[name], key, value) if name in self.controls else "there is no such control"


def controls_of(page: gr.Blocks) -> Iterator[tuple[str, gr.components.Component]]:
    """The controls of the tabs in order, each as "TAB/LABEL"."""

    def walk(block: Any, tab: str) -> Iterator[tuple[str, gr.components.Component]]:
        elem_id = getattr(block, "elem_id", None) or ""
        if isinstance(block, gr.Tab) and elem_id.startswith("tab_"):
            tab = elem_id.removeprefix("tab_")
        label = getattr(block, "label", None)
        if tab in TABS and isinstance(block, _VALUED) and label and block.visible != "hidden":
            yield f"{tab}/{label}", block
        for child in getattr(block, "children", ()):
            yield from walk(child, tab)

    yield from walk(page, "")


def _fields_of(control: gr.components.Component) -> tuple[str, ...]:
    """Return what can be configured of a control. What it starts with may be a function: then the value cannot."""
    value = () if callable(getattr(control, "value", None)) else ("value",)
    return (*value, "visible", *(_RANGE if isinstance(control, gr.Slider) else ()))


def _problem(control: gr.components.Component, key: str, value: Any) -> str:
    """Why a control cannot take this, as the end of a sentence; empty where it can."""
    if key == "visible":
        return "" if isinstance(value, bool) else f"it is {value!r}, and takes true or false"
    if isinstance(control, gr.Slider | gr.Number):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return f"it is {value!r}, and takes a number"
        if key == "step" and value <= 0:
            return f"the step is {value!r}, and must be more than 0"
        if isinstance(control, gr.Slider) and key == "minimum" and value >= control.maximum:
            return f"{value!r} is not below the maximum, {control.maximum:g}"
        if isinstance(control, gr.Slider) and key == "maximum" and value <= control.minimum:
            return f"{value!r} is not above the minimum, {control.minimum:g}"
        return ""
    if isinstance(control, SeedField):
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return "" if is_whole else f"it is {value!r}, and takes a whole number"
    if isinstance(control, gr.Checkbox):
        return "" if isinstance(value, bool) else f"it is {value!r}, and takes true or false"
    if isinstance(control, gr.Textbox):
        return "" if isinstance(value, str) else f"it is {value!r}, and takes a text"
    assert isinstance(control, gr.Dropdown | gr.Radio)
    known = [one for _, one in control.choices]
    several = value if isinstance(value, list) else [value]
    if isinstance(control, gr.Dropdown) and isinstance(value, list) is not bool(control.multiselect):
        return f"it is {value!r}, and takes {'a list' if control.multiselect else 'one name'}"
    unknown = [one for one in several if one not in known]
    if unknown and not getattr(control, "allow_custom_value", False):
        shown = ", ".join(repr(one) for one in known[:12])
        return f"{unknown[0]!r} is not one of {shown}{' ...' if len(known) > 12 else ''}"
    return ""


def _named(control: gr.components.Component, value: Any) -> Any:
    """Return what is chosen in a control, by name also where the control gives its place in the list."""
    if getattr(control, "type", "") != "index" or not isinstance(control, gr.Dropdown | gr.Radio):
        return value
    names = [name for _, name in control.choices]
    if isinstance(value, list):
        return [names[place] for place in value]
    return value if value is None else names[value]


def _default_of(control: gr.components.Component, key: str) -> Any:
    value = getattr(control, key)
    if isinstance(control, SeedField) and key == "value":
        return control.preprocess(value)
    return list(value) if isinstance(value, tuple) else value


def _same(one: Any, other: Any) -> bool:
    """Whether a field holds its default; an empty list, an empty text and nothing are the same to a form."""
    return one == other or (one in (None, "", []) and other in (None, "", []))
