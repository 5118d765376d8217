"""`modules.ui_common`: parts of pages."""

from __future__ import annotations

import html as html_module
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from compat.facades.infotext_utils import bind_buttons, create_buttons
from compat.facades.refusal import refusing
from compat.facades.ui_components import ToolButton

folder_symbol = "\U0001f4c2"
refresh_symbol = "\U0001f504"


def plaintext_to_html(text: str, classname: str | None = None) -> str:
    """A text as HTML, line by line."""
    content = "<br>\n".join(html_module.escape(line) for line in text.split("\n"))
    return f"<p class='{classname}'>{content}</p>" if classname else f"<p>{content}</p>"


def infotext_to_html(text: str) -> str:
    """An infotext as HTML."""
    return "".join(f"<p>{html_module.escape(line)}</p>" for line in text.split("\n") if line)


def create_refresh_button(
    refresh_component: Any,
    refresh_method: Callable[[], Any],
    refreshed_args: dict[str, Any] | Callable[[], dict[str, Any]],
    elem_id: str | None,
) -> Any:
    """A button that calls `refresh_method` and gives the component(s) new arguments ("choices", "value")."""
    components = refresh_component if isinstance(refresh_component, list | tuple) else [refresh_component]

    def refresh() -> Any:
        refresh_method()
        args = refreshed_args() if callable(refreshed_args) else refreshed_args
        for name, value in args.items():
            for component in components:
                setattr(component, name, value)
        updates = [gr.update(**args) for _ in components]
        return updates if len(updates) > 1 else updates[0]

    button = ToolButton(value=refresh_symbol, elem_id=elem_id)
    button.click(fn=refresh, inputs=[], outputs=list(components))
    return button


def setup_dialog(button_show: Any, dialog: Any, *, button_close: Any = None) -> None:
    """Have a button show a group and another one hide it."""
    button_show.click(fn=lambda: gr.update(visible=True), inputs=[], outputs=[dialog])
    if button_close is not None:
        button_close.click(fn=lambda: gr.update(visible=False), inputs=[], outputs=[dialog])


@dataclass
class OutputPanel:
    """Panel of results: `gallery`, `generation_info`, `infotext`, `html_log`."""

    gallery: Any
    generation_info: Any
    infotext: Any
    html_log: Any
    button_upscale: Any = None

    def __iter__(self) -> Any:
        return iter((self.gallery, self.generation_info, self.infotext, self.html_log))


def create_output_panel(tabname: str, outdir: str, toprow: Any = None) -> OutputPanel:
    """A gallery with the infotext of its images and buttons that send them to the tabs."""
    with gr.Column(elem_id=f"{tabname}_results"):
        gallery = gr.Gallery(label="Output", show_label=False, elem_id=f"{tabname}_gallery", columns=4)
        buttons = create_buttons(["img2img", "inpaint", "extras"])
        info = gr.Textbox(visible=False, elem_id=f"generation_info_{tabname}")
        infotext = gr.HTML(elem_id=f"html_info_{tabname}", elem_classes="infotext")
        log = gr.HTML(elem_id=f"html_log_{tabname}", elem_classes="html-log")
    bind_buttons(buttons, gallery, info)
    return OutputPanel(gallery, info, infotext, log)


def update_logfile(logfile_path: str, fields: Any) -> None:
    """The history keeps what was made; there is no log of saved images."""


_REASONS = {
    "open_folder": "the program opens folders by the button under images.",
    "save_files": "the Save buttons of the program's tabs save images.",
    "update_generation_info": "the program's tabs show the infotext of the chosen image by themselves.",
}
__getattr__ = refusing("ui_common", _REASONS)
