"""Settings at the top of every tab, next to the checkpoint and the precision: those that the user lists."""

import logging
from collections.abc import Callable
from typing import Any

import gradio as gr

from modules.errors import FeatherweightError
from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.settings.setting import Setting, SettingType
from modules.settings.values import as_json
from modules.ui.tabs.settings_form import ALWAYS_THERE, component_of

log = logging.getLogger(__name__)


def wanted_quicksettings(services: Services) -> list[Setting]:
    """The listed settings that exist, have an effect and are not in the header anyway; others are named in the log."""
    found = []
    for key in services.settings.current.interface.quicksettings_list:
        if key in ALWAYS_THERE:
            continue
        if key not in SETTINGS or SETTINGS.get(key).hidden:
            log.warning("Quicksettings list: there is no setting %r that could be shown.", key)
        else:
            found.append(SETTINGS.get(key))
    return list(dict.fromkeys(found))


def build_quicksettings(services: Services, page: gr.Blocks) -> None:
    """Build into the layout that is open now. Made again whenever the page is loaded, so a new list needs a reload."""

    def fields() -> None:
        wanted = wanted_quicksettings(services)
        if wanted:
            with gr.Row(elem_id="quicksettings_more"):
                for setting in wanted:
                    _build_field(services, setting)

    gr.render(triggers=[page.load], queue=False, show_progress="hidden")(fields)


def _build_field(services: Services, setting: Setting) -> None:
    field: Any = component_of(setting, as_json(services.settings.current[setting.key]), services)
    # Not while a text is typed or a slider is dragged: each change is written to disk.
    if setting.type in (SettingType.INT, SettingType.FLOAT):
        moment = field.release if isinstance(field, gr.Slider) else field.blur
    else:
        moment = field.blur if setting.type is SettingType.TEXT else field.input
    moment(_storing(services, setting), inputs=[field], queue=False, show_progress="hidden")


def _storing(services: Services, setting: Setting) -> Callable[[Any], None]:
    def store(value: Any) -> None:
        if setting.type is SettingType.INT and isinstance(value, float) and value.is_integer():
            value = int(value)
        try:
            services.settings.update({setting.key: value})
        except FeatherweightError as error:
            raise gr.Error(str(error)) from error

    return store
