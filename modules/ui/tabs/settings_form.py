"""Needs of the page for settings, made from the registry by type; and what changed on the page."""

import logging
from collections.abc import Mapping
from typing import Any

import gradio as gr

from modules.errors import InvalidValueError
from modules.images.infotext import FIELD_ORDER
from modules.processing.request.upscaling import PIXEL_UPSCALERS
from modules.sampling.catalog import SAMPLERS
from modules.services import Services
from modules.settings.definitions import SETTINGS, visible_sections
from modules.settings.setting import AskedChoices, Setting, SettingType
from modules.settings.values import Settings, as_json
from modules.ui.common.localization import NONE, find_localizations, localization_folders
from modules.ui.common.looks import CONTRAST, DEFAULT, THEMES
from modules.ui.common.tab_order import tab_titles, tabs_of_extensions

log = logging.getLogger(__name__)

ALWAYS_THERE = ("sd_model_checkpoint", "forge_additional_modules", "fp8_storage")
"""Settings in the header of the page."""


def visible_settings() -> list[Setting]:
    """Settings that have an effect, in the order of the page."""
    return [setting for settings in visible_sections().values() for setting in settings]


def choices_of(setting: Setting, services: Services) -> list[str]:
    """The choices of a setting; those of a provider are looked up now."""
    if setting.choices == "checkpoints":
        return [info.title for info in services.catalogue.entries]
    if setting.choices == "localizations":
        return [NONE, *find_localizations(localization_folders(services.paths))]
    if setting.choices == "tabs":
        return [name for name in tab_titles(tabs_of_extensions(services.scripts.callbacks)) if name != "settings"]
    if setting.choices == "themes":
        return [DEFAULT, CONTRAST, *THEMES]
    if setting.choices == "upscalers":
        return [*PIXEL_UPSCALERS, *services.engine.upscalers.catalogue.names]
    if setting.choices == "vaes":
        return services.engine.vaes.choices()
    if setting.choices == "modules":
        return [info.name for info in services.engine.modules.refresh()]
    if setting.choices == "samplers":
        return list(SAMPLERS)
    if setting.choices == "settings":
        return [shown.key for shown in visible_settings()]
    if setting.choices == "postprocessing":
        return list(services.operations.names)
    if setting.choices == "infotext_fields":
        of_settings = (shown.infotext for shown in visible_settings() if shown.infotext)
        return list(dict.fromkeys([*FIELD_ORDER, *of_settings]))
    if isinstance(setting.choices, AskedChoices):
        return list(setting.choices.ask())
    return list(setting.choices) if isinstance(setting.choices, tuple) else []


def refreshed_choices(setting: Setting, services: Services) -> list[str]:
    """The choices that there are now. Raises `InvalidValueError` where the extension that gives them fails."""
    if isinstance(setting.choices, AskedChoices) and setting.choices.refresh is not None:
        try:
            setting.choices.refresh()
        except Exception as error:  # an extension's own function
            log.exception("The setting %r could not be refreshed.", setting.label)
            raise InvalidValueError(
                f"{setting.label!r} could not be refreshed: {type(error).__name__}: {error}."
            ) from error
    return choices_of(setting, services)


def described(setting: Setting, services: Services) -> dict[str, Any]:
    """Return what the page's script makes the field of a setting of (settings_fields.js); `initial` is its default,
    `is_open`: its choices may become others, `refreshes`: when they are read again."""
    return {
        "key": setting.key,
        "id": _page_id(setting.key, services),
        "label": setting.label,
        "hint": setting.hint,
        "type": setting.type.value,
        "choices": choices_of(setting, services),
        "is_open": isinstance(setting.choices, AskedChoices),
        "refreshes": isinstance(setting.choices, AskedChoices) and setting.choices.refresh is not None,
        "minimum": setting.minimum,
        "maximum": setting.maximum,
        "step": setting.step,
        "value": as_json(services.settings.current[setting.key]),
        "initial": as_json(setting.default),
        "is_locked": setting.key in services.settings.locked,
    }


def component_of(setting: Setting, value: Any, services: Services) -> gr.components.Component:
    """The component that edits one setting at the top of the page."""
    common: dict[str, Any] = {
        "label": setting.label,
        "value": value,
        "elem_id": f"setting_{setting.key}",
        "elem_classes": ["fw-setting"],
        "interactive": setting.key not in services.settings.locked,
        "min_width": 180,
    }
    if setting.type is SettingType.BOOL:
        return gr.Checkbox(**common)
    if setting.type is SettingType.COLOR:
        return gr.ColorPicker(**common)
    if setting.type is SettingType.CHOICE:
        if isinstance(setting.choices, tuple) and len(setting.choices) <= 4:
            return gr.Radio(choices=choices_of(setting, services), **common)
        return gr.Dropdown(choices=choices_of(setting, services), allow_custom_value=True, **common)
    if setting.type is SettingType.LIST:
        return gr.Dropdown(choices=choices_of(setting, services), multiselect=True, allow_custom_value=True, **common)
    if setting.type in (SettingType.INT, SettingType.FLOAT):
        if setting.minimum is not None and setting.maximum is not None and setting.step is not None:
            return gr.Slider(minimum=setting.minimum, maximum=setting.maximum, step=setting.step, **common)
        return gr.Number(precision=0 if setting.type is SettingType.INT else None, **common)
    return gr.Textbox(**common)


def _page_id(key: str, services: Services) -> str:
    """Users' scripts know a setting by "setting_" and its key; a second field for it, on the page, is named apart."""
    is_above = key in (*ALWAYS_THERE, *services.settings.current.interface.quicksettings_list)
    return f"settings_tab_{key}" if is_above else f"setting_{key}"


def shown_values(settings: Settings) -> dict[str, Any]:
    """The values of the visible settings by key, as the page has them."""
    return {setting.key: as_json(settings[setting.key]) for setting in visible_settings()}


def changed_values(values: Mapping[str, Any], current: Settings) -> dict[str, Any]:
    """Return what values of the page change; an emptied number keeps its value. Keys that no setting has are left to
    `SettingsStore.update`, which refuses them."""
    changes: dict[str, Any] = {}
    for key, value in values.items():
        setting = SETTINGS.get(key) if key in SETTINGS else None
        if setting is None:
            changes[key] = value
            continue
        if value is None and setting.type in (SettingType.INT, SettingType.FLOAT):
            continue
        if setting.type is SettingType.INT and isinstance(value, float) and value.is_integer():
            value = int(value)
        if value != as_json(current[key]):
            changes[key] = value
    return changes
