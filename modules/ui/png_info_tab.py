"""The PNG Info tab: drop an image, read how it was made, send it to txt2img."""

from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from modules.errors import FeatherweightError
from modules.images.metadata import read_metadata
from modules.services import Services
from modules.ui.form import pasted_fields, sent_values
from modules.ui.image_tab import HIDDEN_EVENT, ImageTab
from modules.ui.messages import error_box, note_box


def build_png_info_tab(services: Services, images: ImageTab, tabs: gr.Tabs) -> None:
    """Build the tab's contents inside of the tab that is open now; `images` is what it sends to."""
    with gr.Row():
        with gr.Column(scale=1):
            image = gr.File(
                label="Image (PNG, JPEG, WebP, AVIF, GIF)",
                file_types=["image"],
                type="filepath",
                elem_id="pnginfo_image",
            )
            send = gr.Button("Send to txt2img", elem_id="pnginfo_send_to_txt2img")
        with gr.Column(scale=1):
            shown = gr.HTML(note_box("Drop an image to see its parameters."), elem_id="pnginfo_html")
            text = gr.Textbox(visible=False)

    def read(path: str | None) -> tuple[str, str]:
        if not path:
            return note_box("Drop an image to see its parameters."), ""
        try:
            infotext, items = read_metadata(Path(path))
        except FeatherweightError as error:
            return error_box(str(error)), ""
        if infotext is None and not items:
            return note_box("This image holds no parameters."), ""
        parts = [("parameters", infotext or ""), *items.items()]
        blocks = [f"<h3>{escape(name)}</h3><pre>{escape(value)}</pre>" for name, value in parts if value]
        return f'<div class="fw-infotext-view">{"".join(blocks)}</div>', infotext or ""

    def fill(infotext: str) -> list[Any]:
        parsed = pasted_fields(infotext, services) if infotext else {}
        updates = images.filled(parsed, sent_values(parsed, services))
        return [*updates, gr.update(selected="txt2img") if parsed else gr.update()]

    image.change(read, inputs=[image], outputs=[shown, text], **HIDDEN_EVENT)
    sent = send.click(fill, inputs=[text], outputs=[*images.outputs, tabs], **HIDDEN_EVENT)
    images.keep_after(sent)
