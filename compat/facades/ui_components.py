"""`modules.ui_components`: Gradio components in the page's looks."""

from __future__ import annotations

from typing import Any

import gradio as gr

from compat.facades.refusal import refusing
from compat.habits.gradio_habits import install

install()  # before the first class, beside which Gradio would write a file


class FormComponent:
    """A component that stands in a form's row."""


def _classes(keywords: dict[str, Any], *more: str) -> dict[str, Any]:
    given = keywords.pop("elem_classes", None) or []
    return {**keywords, "elem_classes": [*more, *([given] if isinstance(given, str) else given)]}


class ToolButton(gr.Button, FormComponent):
    """A small button with a symbol."""

    def __init__(self, value: Any = "Run", **kwargs: Any) -> None:  # Gradio drops what `*args` would take
        super().__init__(value, **_classes({"min_width": 36, "scale": 0, "size": "sm", **kwargs}, "tool"))

    def get_block_name(self) -> str:
        return "button"


class ResizeHandleRow(gr.Row):
    """A row; its parts cannot be resized by hand here."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**_classes(kwargs, "resize-handle-row"))

    def get_block_name(self) -> str:
        return "row"


class FormRow(gr.Row, FormComponent):
    """A row of a form."""

    def get_block_name(self) -> str:
        return "row"


class FormColumn(gr.Column, FormComponent):
    """A column of a form."""

    def get_block_name(self) -> str:
        return "column"


class FormGroup(gr.Group, FormComponent):
    """A group of a form."""

    def get_block_name(self) -> str:
        return "group"


class FormHTML(gr.HTML, FormComponent):
    """HTML in a form."""

    def get_block_name(self) -> str:
        return "html"


class FormColorPicker(gr.ColorPicker, FormComponent):
    """A color in a form."""

    def get_block_name(self) -> str:
        return "colorpicker"


class DropdownMulti(gr.Dropdown, FormComponent):
    """A dropdown of which several can be chosen."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"multiselect": True, **kwargs})

    def get_block_name(self) -> str:
        return "dropdown"


class DropdownEditable(gr.Dropdown, FormComponent):
    """A dropdown that takes any text."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_custom_value": True, **kwargs})

    def get_block_name(self) -> str:
        return "dropdown"


class InputAccordion(gr.Checkbox):
    """An accordion whose switch is the value: `with InputAccordion(False, label="Mine") as enabled:` builds what stands
    in it. `accordion` is the accordion itself."""

    global_index = 0

    def __init__(self, value: bool = False, *, label: str = "", elem_id: str | None = None, **kwargs: Any) -> None:
        if elem_id is None:
            elem_id = f"input-accordion-{InputAccordion.global_index}"
            InputAccordion.global_index += 1
        kwargs.pop("open", None)
        shown = kwargs.get("visible", True)
        classes = _classes({}, "input-accordion")["elem_classes"]
        self.accordion = gr.Accordion(label, open=bool(value), elem_id=elem_id, elem_classes=classes, visible=shown)
        with self.accordion:
            super().__init__(value, label=label, elem_id=f"{elem_id}-checkbox", **kwargs)

    def extra(self) -> gr.Column:
        """A column in the accordion for more."""
        with self.accordion:
            return gr.Column(elem_id=f"{self.elem_id}-extra", min_width=0)

    def __enter__(self) -> InputAccordion:
        self.accordion.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self.accordion.__exit__(*error)

    def get_block_name(self) -> str:
        return "checkbox"


__getattr__ = refusing("ui_components", {})
