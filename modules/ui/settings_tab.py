"""The Settings tab: all sections on one page, a search over them, Apply stores what changed."""

from typing import Any

import gradio as gr

from modules.errors import FeatherweightError
from modules.services import Services
from modules.settings.definitions import SETTINGS, visible_sections
from modules.ui.messages import error_box, note_box
from modules.ui.settings_form import changed_values, component_of, shown_values


def build_settings_tab(services: Services, page: gr.Blocks) -> None:
    """Build the tab's contents inside of the tab that is open now."""
    with gr.Row(elem_classes=["fw-settings-bar"]):
        gr.HTML(
            '<input id="settings_search" type="search" placeholder="Search settings" aria-label="Search settings">',
            elem_classes=["fw-search"],
        )
        apply = gr.Button("Apply settings", variant="primary", elem_id="settings_submit", scale=0, min_width=160)
    message = gr.HTML(elem_id="settings_result")
    components: list[gr.components.Component] = []
    values = iter(shown_values(services.settings.current))
    for section, settings in visible_sections().items():
        with gr.Column(elem_classes=["fw-section"], elem_id=f"settings_{section.id}"):
            gr.HTML(f"<h2>{section.title}</h2>")
            components.extend(component_of(setting, next(values), services) for setting in settings)

    def store(*values: Any) -> str:
        try:
            changes = changed_values(values, services.settings.current)
            services.settings.update(changes)
        except FeatherweightError as error:
            return error_box(str(error))
        if not changes:
            return note_box("Nothing was changed.")
        labels = ", ".join(SETTINGS.get(key).label for key in changes)
        restart = any(SETTINGS.get(key).needs_reload for key in changes)
        return note_box(f"Saved: {labels}.{' Reload the page to see it.' if restart else ''}")

    apply.click(store, inputs=components, outputs=[message], queue=False, api_visibility="private")
    page.load(
        lambda: shown_values(services.settings.current),
        outputs=components,
        queue=False,
        api_visibility="private",
        show_progress="hidden",
    )
