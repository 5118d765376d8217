"""Where images appear. The page's script fills it from the job's result; nothing here knows of a job."""

from pathlib import Path

import gradio as gr

from modules.services import Services

PANEL = Path(__file__).parents[1] / "assets" / "output_panel.html"


def build_output_panel(tab: str, services: Services) -> None:
    """The panel: progress, stage, thumbnails, tools, memory, infotext. `tab` begins the ids of its elements."""
    gr.HTML(PANEL.read_text(encoding="utf-8").format(tab=tab), elem_id=f"{tab}_output")
    if services.foreign is not None and services.scripts.is_page_extended:
        services.foreign.build_results(tab)
    # The last control of a tab, by whose id extensions know that all others are there.
    gr.Button("", visible=False, elem_id=f"{tab}_generation_info_button")
