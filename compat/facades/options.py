"""`shared.opts`: the program's settings as an object with attributes by their keys, live in each process."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from compat.facades.option_info import OptionDiv, OptionHTML, OptionInfo, as_setting, options_section
from compat.host import host_now
from compat.processing import making_of_run
from modules.errors import FeatherweightError
from modules.scripts.acting import acting_now
from modules.scripts.job import Making
from modules.settings.definitions import SETTINGS
from modules.settings.values import Settings, as_json, exact_setting

__all__ = ["OptionDiv", "OptionHTML", "OptionInfo", "Options", "OptionsCategories", "categories", "options_section"]

log = logging.getLogger(__name__)


class Options:
    """Reading gives the value that now counts: in a job that of the job, elsewhere that of the settings. Writing
    changes the settings, in a job only for what reads `opts` until its end. What is no setting is kept as an attribute
    of this process."""

    def __init__(self) -> None:
        own = self.__dict__
        own["data"] = OptionData(self)
        own["data_labels"] = Labels(self)
        own["_written"] = (None, {})
        own["_loose"] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(
                f"shared.opts has no setting {name!r}: GET /sdapi/v1/options lists those that there are; an extension "
                "adds its own with shared.opts.add_option.",
                name=name,
                obj=self,
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.data_labels or exact_setting(name) is not None:
            self.data[name] = value
        else:
            self.__dict__[name] = value

    def add_option(self, key: str, info: OptionInfo) -> None:
        """Add a setting of an extension: stored, shown and served like those of the program. A key that is there
        already keeps what it is."""
        self.data_labels[key] = info

    def onchange(self, key: str, func: Callable[..., Any], call: bool = True) -> None:
        """Have `func` called when this setting has changed in this process, and once now with `call`."""
        host_now().settings.subscribe(lambda after, changed: func() if key in changed else None)
        if call:
            func()

    def set(self, key: str, value: Any, is_api: bool = False, run_callbacks: bool = True) -> bool:
        """Change one setting; False where it had this value, or may not have it."""
        if self.data.get(key) == value:
            return False
        try:
            self.data[key] = value
        except FeatherweightError as error:
            log.warning("shared.opts.set: %s", error)
            return False
        return True

    def save(self, filename: str = "") -> None:
        """Changes are saved when they are made; there is nothing left to save."""

    def load(self, filename: str = "") -> None:
        """The settings are read when the program starts."""

    def get_default(self, key: str) -> Any:
        """Return what a setting is at first; None for what is no setting."""
        setting = exact_setting(key)
        if setting is not None:
            return as_json(setting.default)
        return self.data_labels[key].default if key in self.data_labels else None

    def dumpjson(self) -> str:
        """All settings as JSON."""
        return json.dumps(dict(self.data), default=str)

    def reorder(self) -> None:
        """Sections stand in the order in which they were added."""


class OptionData(MutableMapping[str, Any]):
    """`opts.data`: the values by key."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def _now(self) -> Settings:
        run = making_of_run()
        return run.settings() if run is not None else host_now().settings.current

    def _writes(self) -> dict[str, Any]:
        """Return what was written in the job that runs."""
        run: Making | None = making_of_run()
        if self._options.__dict__["_written"][0] is not run:
            self._options.__dict__["_written"] = (run, {})
        written: dict[str, Any] = self._options.__dict__["_written"][1]
        return written

    def __getitem__(self, key: str) -> Any:
        if key in self._writes():
            return self._writes()[key]
        if exact_setting(key) is not None:
            return as_json(self._now()[key])
        loose: dict[str, Any] = self._options.__dict__["_loose"]
        if key in loose:
            return loose[key]
        if key in self._now().foreign:
            return self._now().foreign[key]
        if key in self._options.data_labels:
            return self._options.data_labels[key].default
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if exact_setting(key) is None:
            self._options.__dict__["_loose"][key] = value
        elif making_of_run() is not None:
            self._writes()[key] = value
        else:
            host_now().settings.update({key: value})

    def __delitem__(self, key: str) -> None:
        self._options.__dict__["_loose"].pop(key, None)

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys((*SETTINGS, *self._options.__dict__["_loose"], *self._now().foreign))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def copy(self) -> dict[str, Any]:
        """The values as they now are."""
        return dict(self)

    def clear(self) -> None:
        """Forget what the running job has written, and what is no setting; settings keep their values.
        `mock.patch.dict` does so before it puts back what was there."""
        self._writes().clear()
        self._options.__dict__["_loose"].clear()

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Write what differs from what is there."""
        for key, value in {**dict(other), **more}.items():
            if self.get(key, self) != value:
                self[key] = value


class Labels(dict[str, OptionInfo]):
    """`opts.data_labels` and `shared.options_templates`: setting an entry adds the setting."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options

    def __setitem__(self, key: str, info: OptionInfo) -> None:
        super().__setitem__(key, info)
        author = acting_now()
        setting = as_setting(key, info, author.owner.name if author is not None else "extensions")
        if setting is None or key in SETTINGS:
            return
        SETTINGS.add(key, setting)
        if info.onchange is not None:
            self._options.onchange(key, info.onchange, call=False)

    def update(self, other: Mapping[str, OptionInfo] = {}, **more: OptionInfo) -> None:  # type: ignore[override]
        for key, info in {**other, **more}.items():
            self[key] = info

    def __getitem__(self, key: str) -> OptionInfo:
        if key not in self and (setting := exact_setting(key)) is not None:
            return OptionInfo(
                as_json(setting.default), setting.label, section=(setting.section.id, setting.section.title)
            )
        return super().__getitem__(key)


opts = Options()


@dataclass(frozen=True)
class OptionsCategory:
    """A heading over sections of settings."""

    id: str
    label: str


class OptionsCategories:
    """Headings over sections; settings of extensions stand under one of their own."""

    def __init__(self) -> None:
        self.mapping: dict[str, OptionsCategory] = {}

    def register_category(self, category_id: str, label: str) -> str:
        """Add a heading; gives its id."""
        self.mapping.setdefault(category_id, OptionsCategory(category_id, label))
        return category_id


categories = OptionsCategories()
