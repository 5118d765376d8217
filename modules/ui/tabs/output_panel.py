"""Where images appear. The page's script fills it from the job's result; nothing here knows of a job."""

import gradio as gr

from modules.services import Services
from modules.ui.page.page_scripts import ASSETS


def build_output_panel(tab: str, services: Services) -> None:
    """The panel: progress, stage, thumbnails, tools, memory, infotext. `tab` begins the ids of its elements."""
    panel = (ASSETS / "output_panel.html").read_text(encoding="utf-8")
    gr.HTML(panel.format(tab=tab), elem_id=f"{tab}_output")
    if services.foreign is not None and services.scripts.is_page_extended:
        services.foreign.build_results(tab)
    # The last control of a tab, by whose id extensions know that all others are there.
    gr.Button("", visible=False, elem_id=f"{tab}_generation_info_button")
