"""From the fields of an infotext to the settings that would have to change to make the same image again."""

import logging
from collections.abc import Mapping

from modules.settings.definitions import SETTINGS
from modules.settings.setting import Setting, SettingValue
from modules.settings.values import Settings

MODULES = "forge_additional_modules"
log = logging.getLogger(__name__)


def override_settings_from(parsed: Mapping[str, object], current: Settings) -> dict[str, SettingValue]:
    """Setting keys and values recorded in `parsed` (of `parse_infotext`) that differ from `current`.

    The checkpoint is left out unless "Disregard checkpoint information" is off. A field whose text is no value of
    its setting is left out and logged, because pasted text may come from anywhere.
    """
    changes = _face_restoration(parsed, current) | _modules(parsed, current)
    for key, setting in SETTINGS.items():
        if key == "sd_model_checkpoint" and current.infotext.disable_weights_auto_swap:
            continue
        recorded = _recorded(parsed, setting)
        if recorded is None:
            continue
        try:
            value = setting.from_text(str(recorded))
        except ValueError as error:
            log.warning("Infotext field %r is ignored: %s.", setting.infotext, error)
            continue
        if value != current[key]:
            changes[key] = value
    return changes


def _face_restoration(parsed: Mapping[str, object], current: Settings) -> dict[str, SettingValue]:
    """An image records the model alone, which stands for two settings; one that is unknown here is left out."""
    model = parsed.get("Face restoration")
    if model is None:
        return {}
    try:
        wanted: dict[str, SettingValue] = {
            "face_restoration": True,
            "face_restoration_model": SETTINGS.get("face_restoration_model").check(model),
        }
    except ValueError as error:
        log.warning("Infotext field 'Face restoration' is ignored: %s.", error)
        return {}
    return {key: value for key, value in wanted.items() if value != current[key]}


def _modules(parsed: Mapping[str, object], current: Settings) -> dict[str, SettingValue]:
    """Files with parts of the model are recorded one by one: "Module 1", "Module 2" ..."""
    names: list[str] = []
    while (name := parsed.get(f"Module {len(names) + 1}")) is not None:
        names.append(str(name))
    return {MODULES: tuple(names)} if names and tuple(names) != current[MODULES] else {}


def _recorded(parsed: Mapping[str, object], setting: Setting) -> object | None:
    for name in (setting.infotext, *setting.infotext_aliases):
        if name is not None and name in parsed:
            return parsed[name]
    return None
