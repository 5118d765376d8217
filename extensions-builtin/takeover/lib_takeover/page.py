"""The part of Settings > Actions that takes over another program's folder."""

from html import escape

import gradio as gr

from lib_takeover.routes import taken_over
from modules.access.roles import Role, open_to
from modules.errors import FeatherweightError
from modules.services import Services
from modules.ui.common.messages import error_box

IMPORT = """
<h3>Coming from another program</h3>
<p>Takes over models by path, styles, settings, defaults and images.
Nothing there is changed, nothing here is overwritten.</p>
"""


def build_takeover(services: Services) -> None:
    """Build the field and button that take over another program's folder."""
    gr.HTML(IMPORT)
    with gr.Row(equal_height=True):
        folder = gr.Textbox(
            label="Folder of A1111 or Forge",
            placeholder="/home/me/stable-diffusion-webui",
            elem_id="settings_import_folder",
            scale=4,
        )
        button = gr.Button("Take over", elem_id="settings_import", scale=0, min_width=140)
    result = gr.HTML(elem_id="settings_import_result")

    @open_to(Role.ADMIN)
    def take(name: str) -> str:
        if not name.strip():
            return error_box("Give the full path of a folder of this server's machine.")
        try:
            report = taken_over(services, name)
        except FeatherweightError as error:
            return error_box(str(error))
        return f'<pre class="fw-takeover" translate="no">{escape(chr(10).join(report.lines))}</pre>'

    button.click(take, inputs=[folder], outputs=[result], queue=False, api_visibility="private")
