"""`shared.OptionInfo`: how extensions describe a setting, and what it becomes among the settings of the program."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modules.scripts.acting import Acting, acting, acting_now
from modules.settings.setting import AskedChoices, Section, Setting, SettingType, SettingValue

log = logging.getLogger(__name__)
Choices = tuple[str, ...] | AskedChoices | None
LISTS = ("Dropdown", "Radio")
"""Components that choose one of their choices."""
_TAGS = re.compile(r"<[^>]*>")


class OptionInfo:
    """A setting: its default, its label, the Gradio component that shows it with its arguments (or a function that
    gives them). The methods add to what the page says of it and return the setting itself."""

    do_not_save = False

    def __init__(
        self,
        default: Any = None,
        label: str = "",
        component: Any = None,
        component_args: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        onchange: Callable[[], Any] | None = None,
        section: tuple[Any, ...] | None = None,
        refresh: Callable[[], Any] | None = None,
        comment_before: str = "",
        comment_after: str = "",
        infotext: str | None = None,
        restrict_api: bool = False,
        category_id: str | None = None,
    ) -> None:
        self.default = default
        self.label = label
        self.component = component
        self.component_args = component_args
        self.onchange = onchange
        self.section = section
        self.refresh = refresh
        self.comment_before = comment_before
        self.comment_after = comment_after
        self.infotext = infotext
        self.restrict_api = restrict_api
        self.category_id = category_id
        self.reloads = False

    def link(self, label: str, url: str) -> OptionInfo:
        """An address that explains the setting."""
        return self._more(f"{label}: {url}")

    def js(self, label: str, js_func: str) -> OptionInfo:
        """Accepted; settings have no buttons of their own here."""
        return self

    def info(self, info: str) -> OptionInfo:
        """A remark behind the label."""
        return self._more(info)

    def html(self, html: str) -> OptionInfo:
        """Return the same as HTML, shown as text."""
        return self._more(_TAGS.sub("", html))

    def needs_restart(self) -> OptionInfo:
        """A change counts after the next start."""
        self.reloads = True
        return self

    def needs_reload_ui(self) -> OptionInfo:
        """A change counts after Reload UI."""
        self.reloads = True
        return self

    def _more(self, text: str) -> OptionInfo:
        self.comment_after = f"{self.comment_after} {text}".strip()
        return self

    def arguments(self) -> Mapping[str, Any]:
        """Return those of the component, as they now are."""
        try:
            given = self.component_args() if callable(self.component_args) else self.component_args
        except Exception:  # somebody else's function, which may need what is not there yet
            log.warning("The choices of the setting %r could not be asked for.", self.label, exc_info=True)
            given = None
        return given or {}


class OptionHTML(OptionInfo):
    """A piece of text among settings; it has no value."""

    do_not_save = True

    def __init__(self, text: str) -> None:
        super().__init__(str(text).strip(), label="", component=None)


class OptionDiv(OptionInfo):
    """A line between settings; it has no value."""

    do_not_save = True

    def __init__(self) -> None:
        super().__init__(None, "")


def options_section(section: tuple[Any, ...], options: dict[str, OptionInfo]) -> dict[str, OptionInfo]:
    """Return the same options, in this section: (id, title) or (id, title, category)."""
    for option in options.values():
        option.section = section
        option.category_id = section[2] if len(section) > 2 else option.category_id
    return options


def as_setting(key: str, option: OptionInfo, extension: str) -> Setting | None:
    """The setting of the program that an option is; None for one without a value, or with a value that settings cannot
    hold (the extension then has its default)."""
    if option.do_not_save or not isinstance(option.default, bool | int | float | str | list | tuple | None):
        return None
    given = option.arguments()
    type, default, choices = _typed(option, given, acting_now())
    common: dict[str, Any] = {
        "key": key,
        "label": option.label or key,
        "type": type,
        "section": _section(option, extension),
    }
    common |= {"hint": option.comment_after, "infotext": option.infotext, "api_writable": not option.restrict_api}
    common |= {"needs_reload": option.reloads, "optional": default is None}
    if type in (SettingType.INT, SettingType.FLOAT):
        limits = {name: given.get(name) for name in ("minimum", "maximum", "step")}
        common |= {name: value for name, value in limits.items() if isinstance(value, int | float)}
    try:
        return Setting(default=default, choices=choices, **common)
    except ValueError:  # a default that its own limits or choices refuse: any value is taken then
        common |= {"minimum": None, "maximum": None, "step": None}
        try:
            return Setting(default=default, **common)
        except ValueError:
            return None


def _section(option: OptionInfo, extension: str) -> Section:
    given = option.section
    if not given or not given[0]:
        return Section(id=f"extension_{extension}", title=extension, category="extensions")
    return Section(id=str(given[0]), title=str(given[1]) if len(given) > 1 else str(given[0]), category="extensions")


def _typed(
    option: OptionInfo, given: Mapping[str, Any], author: Acting | None
) -> tuple[SettingType, SettingValue, Choices]:
    default, component = option.default, getattr(option.component, "__name__", "")
    choices = _texts(given.get("choices"))
    asked = _asked(option, author)
    own = asked if option.refresh is not None else None
    if isinstance(default, list | tuple) or given.get("multiselect") or component in ("CheckboxGroup", "DropdownMulti"):
        values = tuple(str(value) for value in default or ())
        return SettingType.LIST, values, asked or (choices if choices and set(values) <= set(choices) else None)
    if isinstance(default, bool):
        return SettingType.BOOL, default, own
    if isinstance(default, int | float):
        step = given.get("step")
        is_whole = isinstance(default, int) and (step is None or float(step).is_integer()) and _is_whole_range(given)
        return (SettingType.INT if is_whole else SettingType.FLOAT), default, own
    if component == "ColorPicker" and isinstance(default, str) and re.fullmatch("#[0-9a-fA-F]{6}", default):
        return SettingType.COLOR, default, own
    if asked is not None and (choices or component in LISTS) and isinstance(default, str | None):
        return SettingType.CHOICE, default, asked
    if choices and isinstance(default, str) and default in choices:
        return SettingType.CHOICE, default, choices
    return SettingType.TEXT, default if isinstance(default, str) else None, own


def _asked(option: OptionInfo, author: Acting | None) -> AskedChoices | None:
    """Choices that the extension is asked for again; None where they stay what they are."""
    if option.refresh is None and not callable(option.component_args):
        return None
    refresh = option.refresh

    def ask() -> tuple[str, ...]:
        with acting(author):
            return _texts(option.arguments().get("choices")) or ()

    def refreshed() -> None:
        with acting(author):
            assert refresh is not None
            refresh()

    return AskedChoices(ask, None if refresh is None else refreshed)


def _is_whole_range(given: Mapping[str, Any]) -> bool:
    return all(float(given.get(name) or 0).is_integer() for name in ("minimum", "maximum"))


def _texts(choices: Sequence[Any] | None) -> tuple[str, ...] | None:
    """Choices by their values; None where some are no texts."""
    values = [one[-1] if isinstance(one, tuple) else one for one in choices or ()]
    return tuple(values) if values and all(isinstance(one, str) for one in values) else None
