"""Settings of extensions: added to those of the program before the page is built, stored and shown like ours."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Unpack

from modules.errors import UnknownNameError
from modules.scripts.callbacks import Callbacks, Moment
from modules.settings import group
from modules.settings.definitions import SETTINGS
from modules.settings.group import Extras, NumberExtras, SettingAttribute, SettingsGroup
from modules.settings.setting import Section, Setting, SettingValue
from modules.system.registry import Registry

log = logging.getLogger(__name__)


class ExtensionSettings:
    """Argument of `on_ui_settings`: each method adds settings to the section of the extension.

    `key` should begin with the extension's name. Raises `ValueError` for a key that is taken.
    """

    def __init__(self, section: Section, registry: Registry[Setting] = SETTINGS) -> None:
        self._section = section
        self._registry = registry

    def section(self, section_id: str) -> ExtensionSettings:
        """Return the same for a section of the program, such as "extra_networks"; raises `UnknownNameError`."""
        sections = {setting.section.id: setting.section for _, setting in self._registry.items()}
        if section_id not in sections:
            raise UnknownNameError.of("section of settings", section_id, sections)
        return ExtensionSettings(sections[section_id], self._registry)

    def add(self, settings: type[SettingsGroup]) -> None:
        """All settings of a class, in the section the class names; `settings(values)` then reads them typed."""
        for setting in settings.definitions():
            self._add(setting)

    def flag(self, key: str, label: str, default: bool, **extras: Unpack[Extras]) -> None:
        """On or off."""
        self._define(key, group.flag(label, default, **extras))

    def whole(self, key: str, label: str, default: int, **extras: Unpack[NumberExtras]) -> None:
        """A whole number; with minimum, maximum and step a slider."""
        self._define(key, group.whole(label, default, **extras))

    def number(self, key: str, label: str, default: float, **extras: Unpack[NumberExtras]) -> None:
        """A number; with minimum, maximum and step a slider."""
        self._define(key, group.number(label, default, **extras))

    def text(self, key: str, label: str, default: str, **extras: Unpack[Extras]) -> None:
        """A text."""
        self._define(key, group.text(label, default, **extras))

    def choice(self, key: str, label: str, default: str, choices: tuple[str, ...], **extras: Unpack[Extras]) -> None:
        """One of several texts."""
        self._define(key, group.choice(label, default, choices, **extras))

    def many(
        self,
        key: str,
        label: str,
        default: tuple[str, ...],
        choices: tuple[str, ...] | None = None,
        **extras: Unpack[Extras],
    ) -> None:
        """A list of these texts; of any, without choices."""
        self._define(key, group.many(label, default, choices, **extras))

    def kept(self, defaults: Mapping[str, SettingValue]) -> None:
        """Keys of other programs that have no effect here: accepted and kept, never shown."""
        for setting in group.kept(self._section, defaults):
            self._add(setting)

    def _define(self, key: str, attribute: SettingAttribute[object]) -> None:
        self._add(attribute.define(key, self._section))

    def _add(self, setting: Setting) -> None:
        # A second library of one process (a test, a reload) brings the same setting again.
        if setting.key in self._registry and self._registry.get(setting.key) == setting:
            return
        self._registry.add(setting.key, setting)


def add_settings(callbacks: Callbacks, registry: Registry[Setting] = SETTINGS) -> None:
    """Have all extensions add their settings; one that fails is logged by name, what it added before stays."""
    for entry in callbacks.at(Moment.UI_SETTINGS):
        extension = entry.extension.partition("/")[0]
        section = Section(id=f"extension_{extension}", title=extension, category="extensions")
        try:
            offered = () if takes_nothing(entry.function) else (ExtensionSettings(section, registry),)
            callbacks.run(entry, *offered)
        except (Exception, SystemExit) as error:  # somebody else's code must not cost the program
            log.exception("The settings of %s could not be added.", entry.label)
            if entry.acting is not None:
                entry.acting.owner.note("ui_settings", error)


def takes_nothing(function: Callable[..., object]) -> bool:
    """Whether a function can be called without arguments only, as those that use `shared.opts.add_option`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return not any(one.kind is not one.KEYWORD_ONLY and one.kind is not one.VAR_KEYWORD for one in parameters)
