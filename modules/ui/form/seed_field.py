"""The field of a seed: a whole number up to 2^64 - 1, which browsers would round in a number field above 2^53."""

from typing import Any

import gradio as gr

from modules.processing.request.parameters import whole_number
from modules.ui.common.gradio_scripts import write_no_interface_files

write_no_interface_files()


class SeedField(gr.Textbox):
    """One line of text that functions receive and give as a whole number. Text that is none is passed on unchanged: who
    reads the form says what is wrong with it."""

    def __init__(self, value: int = -1, **shown: Any) -> None:
        super().__init__(str(value), max_lines=1, **shown)

    def get_block_name(self) -> str:
        return "textbox"

    def get_config(self, cls: Any = None) -> dict[str, Any]:
        return super().get_config(gr.Textbox)

    def preprocess(self, payload: Any) -> Any:
        try:
            return whole_number(str(payload)) if payload not in (None, "") else None
        except ValueError:
            return payload

    def postprocess(self, value: Any) -> str | None:
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        return None if whole is None else str(whole)
