"""The header: which checkpoint, in how many bits, what it weighs, dark or light."""

from typing import Any

import gradio as gr

from modules.errors import FeatherweightError
from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.settings.sections.optimizations import FP8_CHOICES
from modules.ui.common.defaults import wanted_checkpoint
from modules.ui.tabs.image_tab import HIDDEN_EVENT
from modules.ui.tabs.quicksettings import build_quicksettings

MODULES = "forge_additional_modules"


def build_header(services: Services, page: gr.Blocks) -> gr.Dropdown:
    """Build the header row; returns the field of the checkpoint. Choosing stores the setting; the model is loaded
    (again) in the background."""
    with gr.Row(elem_id="quicksettings"):
        gr.HTML('<h1 class="fw-brand">Featherweight</h1>', elem_id="fw_brand")
        checkpoint: gr.Dropdown = gr.Dropdown(
            choices=_titles(services),
            value=wanted_checkpoint(services) or None,
            label="Stable Diffusion checkpoint",
            elem_id="setting_sd_model_checkpoint",
            scale=3,
        )
        refresh = gr.Button("↻", elem_id="refresh_sd_model_checkpoint", scale=0, min_width=44)
        modules = gr.Dropdown(
            choices=_module_names(services),
            value=list(services.settings.current.vae.forge_additional_modules),
            label=SETTINGS.get(MODULES).label,
            multiselect=True,
            allow_custom_value=True,
            elem_id=f"setting_{MODULES}",
            scale=2,
        )
        fp8 = gr.Dropdown(
            choices=list(FP8_CHOICES),
            value=services.settings.current.optimizations.fp8_storage,
            label=SETTINGS.get("fp8_storage").label,
            elem_id="setting_fp8_storage",
            scale=1,
            min_width=150,
        )
        gr.HTML(
            '<p id="fw_scales" aria-live="polite"></p>'
            '<button id="fw_usual" type="button" hidden>Usual settings</button>'
            '<select id="fw_language" aria-label="Language" title="Language of the page" hidden></select>'
            '<form id="fw_user" method="post" action="logout" hidden><b></b> '
            '<button type="submit" hidden>Log out</button></form>'
            '<button type="button" id="fw_find" aria-label="Find a control" title="Find a control, a setting or a tab '
            '(Ctrl+K)">⌕</button><div class="fw-menu" id="fw_presets"></div>'
            '<button type="button" id="fw_theme" aria-label="Switch between dark and light">◐</button>'
            '<button type="button" id="fw_more" aria-label="More controls" aria-expanded="false">⚙</button>',
            elem_id="fw_status",
        )
    build_quicksettings(services, page)

    def store(key: str, value: str | list[str] | None) -> None:
        try:
            services.settings.update({key: value})
        except FeatherweightError as error:
            raise gr.Error(str(error)) from error

    def choose(title: str | None) -> None:
        if title:
            store("sd_model_checkpoint", title)

    def look() -> Any:
        services.catalogue.refresh()
        return checkpoint_choice(services)

    def current_choices() -> tuple[Any, Any, str]:
        current = services.settings.current
        parts = gr.update(choices=_module_names(services), value=list(current.vae.forge_additional_modules))
        return checkpoint_choice(services), parts, current.optimizations.fp8_storage

    fp8.input(lambda value: store("fp8_storage", value), inputs=[fp8], **HIDDEN_EVENT)
    modules.input(lambda value: store(MODULES, value or []), inputs=[modules], **HIDDEN_EVENT)
    checkpoint.input(choose, inputs=[checkpoint], **HIDDEN_EVENT)
    refresh.click(look, outputs=[checkpoint], **HIDDEN_EVENT)
    page.load(current_choices, outputs=[checkpoint, modules, fp8], **HIDDEN_EVENT)
    return checkpoint


def checkpoint_choice(services: Services) -> Any:
    """Return what the header's field shows after the list of checkpoints has changed."""
    return gr.update(choices=_titles(services), value=wanted_checkpoint(services) or None)


def _module_names(services: Services) -> list[str]:
    return [info.name for info in services.engine.modules.refresh()]


def _titles(services: Services) -> list[str]:
    return [info.title for info in services.catalogue.entries]
