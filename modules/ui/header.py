"""The header: which checkpoint, what it weighs, dark or light."""

from typing import Any

import gradio as gr

from modules.errors import FeatherweightError
from modules.services import Services
from modules.ui.defaults import wanted_checkpoint
from modules.ui.txt2img_tab import HIDDEN_EVENT


def build_header(services: Services, page: gr.Blocks) -> None:
    """Build the header row. Choosing a checkpoint stores the setting and loads in the background."""
    with gr.Row(elem_id="quicksettings"):
        gr.HTML('<h1 class="fw-brand">Featherweight</h1>', elem_id="fw_brand")
        checkpoint = gr.Dropdown(
            choices=_titles(services),
            value=wanted_checkpoint(services) or None,
            label="Stable Diffusion checkpoint",
            elem_id="setting_sd_model_checkpoint",
            scale=3,
        )
        refresh = gr.Button("↻", elem_id="refresh_sd_model_checkpoint", scale=0, min_width=44)
        gr.HTML(
            '<p id="fw_scales" aria-live="polite"></p>'
            '<button type="button" id="fw_theme" aria-label="Switch between dark and light">◐</button>',
            elem_id="fw_status",
        )

    def choose(title: str | None) -> None:
        current = services.settings.current.text("sd_model_checkpoint")
        if title and title != current:
            try:
                services.settings.update({"sd_model_checkpoint": title})
            except FeatherweightError as error:
                raise gr.Error(str(error)) from error
            services.engine.request_load(title)

    def look() -> Any:
        services.catalogue.refresh()
        return current_choice()

    def current_choice() -> Any:
        return gr.update(choices=_titles(services), value=wanted_checkpoint(services) or None)

    checkpoint.input(choose, inputs=[checkpoint], **HIDDEN_EVENT)
    refresh.click(look, outputs=[checkpoint], **HIDDEN_EVENT)
    page.load(current_choice, outputs=[checkpoint], **HIDDEN_EVENT)


def _titles(services: Services) -> list[str]:
    return [info.title for info in services.catalogue.entries]
