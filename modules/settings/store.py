"""config.json: read once at start, written atomically at each change, never lost. Keys of old versions get their new
names, and no value stops the start."""

import json
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from modules.errors import OutputError
from modules.settings.setting import LONE_SURROGATE, SettingValue
from modules.settings.values import Settings, as_json, exact_setting
from modules.system.atomic_files import keep_aside, output_error, write_atomic
from modules.system.bounded import read_json
from modules.system.texts import page_text

VERSION = 1  # of the file; raise it together with a step in `migrate`
VERSION_KEY = "featherweight_config_version"
"""Not a setting: the reference UI keeps it as a key that it does not know."""

OnChange = Callable[[Settings, frozenset[str]], None]
"""Called after a change was stored, with the new settings and the keys whose values changed."""


class SettingsStore:
    """The settings of this program and the file they live in. All methods are thread safe.

    A damaged file is kept aside as `config.json.corrupt-N` and the defaults are used; `notices` says so, and names
    single values that could not be used. Keys in `locked` cannot be changed (command line `--freeze-settings` and
    the like).
    """

    def __init__(self, path: Path, locked: Collection[str] = (), is_mirror: bool = False) -> None:
        """Reads `path` if it exists. Raises OutputError if a damaged file cannot be kept aside. `is_mirror`: the file
        belongs to another process, which says what changes; it is never written."""
        self.path = path
        self._is_mirror = is_mirror
        self.locked = frozenset(locked)
        self._lock = threading.RLock()
        self._callbacks: list[OnChange] = []
        self._current, self.notices = self._load()

    @property
    def current(self) -> Settings:
        """The settings as they are now; the object does not change when they do."""
        return self._current

    def update(self, changes: Mapping[str, object], *, from_api: bool = False) -> Settings:
        """Check, store and announce changes; returns the new settings.

        Raises SettingsError (nothing changed) for a wrong key or value, OutputError (nothing changed) when the file
        cannot be written. An error of a subscriber takes the change back and is raised again.
        """
        with self._lock:
            before = self._current
            after = before.with_changes(changes, from_api=from_api, locked=self.locked)
            changed = frozenset(key for key in changes if key not in before.foreign and before[key] != after[key])
            if not changed:
                return before
            self._replace(after)
            try:
                for callback in tuple(self._callbacks):
                    callback(after, changed)
            except BaseException:
                self._replace(before)
                raise
            return after

    def mirror(self, settings: Settings) -> None:
        """Take over settings that the owner of the file has changed, and announce them; see `is_mirror`."""
        with self._lock:
            before, self._current = self._current, settings
            changed = frozenset(key for key in settings if before[key] != settings[key])
            for callback in tuple(self._callbacks) if changed else ():
                callback(settings, changed)

    def adopt(self) -> None:
        """Take over what the file holds for settings that became known after it was read (those of extensions)."""
        with self._lock:
            self._current, notices = read_stored(self._current.to_stored())
            self.notices = (*self.notices, *notices)

    def subscribe(self, callback: OnChange) -> Callable[[], None]:
        """Have `callback` called after each change; returns a function that ends it."""
        with self._lock:
            self._callbacks.append(callback)

        def unsubscribe() -> None:
            with self._lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)

        return unsubscribe

    def _replace(self, settings: Settings) -> None:
        """Write first, then take over: memory and file never differ by a failed write."""
        if self._is_mirror:
            self._current = settings
            return
        stored = {**settings.to_stored(), VERSION_KEY: VERSION}
        data = json.dumps(stored, indent=4, ensure_ascii=False).encode("utf-8")
        try:
            write_atomic(self.path, data)
        except OSError as error:
            raise output_error(f"The settings file {self.path.name}", self.path.parent, error) from error
        self._current = settings

    def _load(self) -> tuple[Settings, tuple[str, ...]]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return Settings(), ()
        except IsADirectoryError:
            return Settings(), (self._keep_aside("it is a folder"),)
        except OSError as error:
            raise OutputError(
                f"{self.path} exists but cannot be read: {error.strerror}. "
                "Change its permissions, or start with another --ui-settings-file."
            ) from error
        try:
            stored = read_json(data.decode("utf-8-sig"), constant=float)
        except ValueError as error:
            return Settings(), (self._keep_aside(f"it is not valid JSON ({error})"),)
        if not isinstance(stored, dict):
            return Settings(), (self._keep_aside("it holds no JSON object"),)
        version = stored.pop(VERSION_KEY, VERSION)
        if isinstance(version, int) and version > VERSION:
            raise OutputError(
                f"{self.path.name} was written by a newer version of this program. Use that version, or start with "
                "another --ui-settings-file."
            )
        whole = {whole_text(key): whole_texts(value) for key, value in stored.items()}
        settings, notices = read_stored(migrate(whole))
        if whole != stored:
            changed = ", ".join(key for key, value in whole.items() if stored.get(key) != value)
            notices += (page_text(f"{self.path.name} held lone surrogates in {changed}; they were replaced."),)
        return settings, notices

    def _keep_aside(self, reason: str) -> str:
        """Rename the damaged file to the first free `.corrupt-N`; returns the notice."""
        try:
            aside = keep_aside(self.path)
        except OSError as error:
            raise output_error(f"A copy of the damaged {self.path.name}", self.path.parent, error) from error
        return f"{self.path.name} could not be read: {reason}. It was kept as {aside.name}; the defaults are used."


def read_stored(stored: Mapping[str, object]) -> tuple[Settings, tuple[str, ...]]:
    """Settings from a stored file, and a notice for each value that could not be used (its default is)."""
    values: dict[str, SettingValue] = {}
    foreign: dict[str, object] = {}
    notices: list[str] = []
    for key, value in stored.items():
        setting = exact_setting(key)
        if setting is None:
            foreign[key] = value
            continue
        try:
            values[key] = setting.check(value)
        except ValueError as error:
            notices.append(page_text(f"{error}. The default {as_json(setting.default)!r} is used."))
    return Settings(values, foreign), tuple(notices)


def migrate(stored: Mapping[str, object]) -> dict[str, object]:
    """A copy of `stored` with renamed keys under their new names. A new key that is present wins over the old one."""
    values = dict(stored)
    quicksettings = values.pop("quicksettings", None)
    if isinstance(quicksettings, str):
        values.setdefault("quicksettings_list", _split_names(quicksettings))
    reorder = values.pop("ui_reorder", None)
    if isinstance(reorder, str):
        values.setdefault("ui_reorder_list", _split_names(reorder))
    vae_as_default = values.pop("sd_vae_as_default", None)
    if isinstance(vae_as_default, bool):
        # The old switch said the opposite: the chosen VAE was only a default for models without their own.
        values.setdefault("sd_vae_overrides_per_model_preferences", not vae_as_default)
    emphasis = values.pop("enable_emphasis", None)
    if isinstance(emphasis, bool):
        values.setdefault("emphasis", "Original" if emphasis else "None")
    if values.pop("always_batch_cond_uncond", None) is True:  # False was the default, for little memory only
        values.setdefault("batch_cond_uncond", True)
    attention = values.get("cross_attention_optimization")
    if isinstance(attention, str):
        # The reference UI keeps the title: "sdp - scaled dot product".
        values["cross_attention_optimization"] = attention.split(" - ")[0]
    return values


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def whole_text(text: str) -> str:
    """The text with U+FFFD, the replacement character, instead of each lone surrogate."""
    return LONE_SURROGATE.sub("\ufffd", text)


def whole_texts(value: object) -> object:
    """`whole_text` for every text in JSON data, keys included; everything else as it is."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [whole_texts(item) for item in value]
    if isinstance(value, dict):
        return {whole_text(str(key)): whole_texts(item) for key, item in value.items()}
    return value
