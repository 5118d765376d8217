"""The PNG Info tab: drop an image, read how it was made, send it to a tab that takes images."""

from html import escape
from pathlib import Path

import gradio as gr

from modules.errors import FeatherweightError
from modules.images.metadata import read_metadata
from modules.ui.common.messages import error_box, note_box
from modules.ui.tabs.image_tab import HIDDEN_EVENT

SHOWN = """<div id="pnginfo_shown"></div>
<div id="pnginfo_send" class="fw-tools fw-send" role="group" aria-label="Send to" hidden></div>"""
READ_SCRIPT = "(file, infotext) => { featherweight.pngInfoRead(file, infotext); }"


def build_png_info_tab() -> None:
    """Build the tab's contents inside of the tab that is open now. The page's script fills the buttons (send.js)."""
    with gr.Row():
        with gr.Column(scale=1):
            image = gr.File(
                label="Image (PNG, JPEG, WebP, AVIF, GIF)",
                file_types=["image"],
                type="filepath",
                elem_id="pnginfo_image",
            )
            gr.HTML(SHOWN, elem_id="pnginfo_send_box")
        with gr.Column(scale=1):
            shown = gr.HTML(note_box("Drop an image to see its parameters."), elem_id="pnginfo_html")
            text = gr.Textbox(visible="hidden")

    def read(path: str | None) -> tuple[str, str]:
        if not path:
            return note_box("Drop an image to see its parameters."), ""
        try:
            infotext, items = read_metadata(Path(path))
        except FeatherweightError as error:
            return error_box(str(error)), ""
        if infotext is None and not items:
            return note_box("This image holds no parameters."), ""
        parts = [("Parameters", infotext or ""), *items.items()]
        blocks = [f"<h3>{escape(name)}</h3><pre>{escape(value)}</pre>" for name, value in parts if value]
        return f'<div class="fw-infotext-view">{"".join(blocks)}</div>', infotext or ""

    was_read = image.change(read, inputs=[image], outputs=[shown, text], **HIDDEN_EVENT)
    was_read.then(None, inputs=[image, text], js=READ_SCRIPT, api_visibility="private")
