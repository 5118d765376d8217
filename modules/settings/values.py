"""The values of all settings at one moment: immutable, so a running job keeps what it began with."""

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType

from modules.errors import SettingsError
from modules.settings.definitions import SETTINGS, SettingsGroups
from modules.settings.setting import Setting, SettingValue


class UnknownSettingError(SettingsError, KeyError):
    """There is no such setting. Also a KeyError, because `Settings` is a mapping."""

    __str__ = Exception.__str__  # KeyError's would show the repr


class Settings(SettingsGroups):
    """All values: by group and attribute, typed (`settings.sampler.eta_ddim`), and as a mapping of every known key.

    The keys are for the edges (files, API, page, overrides) and for settings of extensions. A key that was never set
    has its default.

    `foreign` holds the keys of a stored file that no setting answers to (of an extension that is not installed, of
    another program version): they are kept as they are and written back. Lists are tuples in here.
    """

    def __init__(
        self, values: Mapping[str, SettingValue] | None = None, foreign: Mapping[str, object] | None = None
    ) -> None:
        """`values` must be checked already; what comes from outside goes through `with_changes` or `read_stored`."""
        self._values = dict(values or {})
        self.foreign: Mapping[str, object] = MappingProxyType(dict(foreign or {}))

    def __reduce__(self) -> tuple[type["Settings"], tuple[dict[str, SettingValue], dict[str, object]]]:
        """For a worker in another process."""
        return Settings, (self._values, dict(self.foreign))

    def __getitem__(self, key: str) -> SettingValue:
        if key in self._values:
            return self._values[key]
        return _definition(key).default

    def __iter__(self) -> Iterator[str]:
        return iter(SETTINGS)

    def __len__(self) -> int:
        return len(SETTINGS)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Settings)
            and self.differences() == other.differences()
            and dict(self.foreign) == dict(other.foreign)
        )

    def __repr__(self) -> str:
        return f"Settings({self.differences()!r})"

    def flag(self, key: str) -> bool:
        """The value of an on/off setting."""
        value = self[key]
        assert isinstance(value, bool), f"setting {key} is no flag"
        return value

    def whole(self, key: str) -> int:
        """The value of a setting that is a whole number."""
        value = self[key]
        assert isinstance(value, int) and not isinstance(value, bool), f"setting {key} is no whole number"
        return value

    def number(self, key: str) -> float:
        """The value of a setting that is a number."""
        value = self[key]
        assert isinstance(value, int | float) and not isinstance(value, bool), f"setting {key} is no number"
        return float(value)

    def text(self, key: str) -> str:
        """The value of a setting that is a text or a choice; empty where it is null."""
        value = self[key]
        assert value is None or isinstance(value, str), f"setting {key} is no text"
        return value or ""

    def many(self, key: str) -> tuple[str, ...]:
        """The value of a setting that is a list of texts."""
        value = self[key]
        assert isinstance(value, tuple), f"setting {key} is no list"
        return value

    def changed(self, **changes: object) -> "Settings":
        """`with_changes` with the keys as names."""
        return self.with_changes(changes)

    def with_changes(
        self, changes: Mapping[str, object], *, from_api: bool = False, locked: Collection[str] = ()
    ) -> "Settings":
        """New settings with these keys changed; nothing is changed if any of them is wrong.

        Keys in `locked`, and with `from_api` those that the API may not change, may only be given with the value
        they have, so that a whole GET body can be sent back. Raises SettingsError that names all bad keys at once.
        """
        values = dict(self._values)
        problems: list[str] = []
        for key, value in changes.items():
            if key in self.foreign and self.foreign[key] == value:
                continue
            try:
                checked = _definition(key).check(value)
            except ValueError as error:
                problems.append(str(error))
                continue
            except UnknownSettingError as error:
                problems.append(str(error)[0].lower() + str(error)[1:].rstrip("."))
                continue
            if checked != self[key]:
                if _definition(key).by_hand and (from_api or key in locked):
                    problems.append(f"{key} is only taken from config.json: write it there while the server is ended")
                elif key in locked:
                    problems.append(f"{key} is locked by the options this program was started with")
                elif from_api and not _definition(key).api_writable:
                    problems.append(f"{key} cannot be changed through the API; change it on the settings page")
            values[key] = checked
        if problems:
            raise SettingsError(_ended(f"Nothing was changed: {'; '.join(problems)}"))
        return Settings(values, self.foreign)

    def differences(self) -> dict[str, object]:
        """Return what differs from the defaults, ready for JSON; `with_changes` on `Settings()` takes it back."""
        return {key: as_json(value) for key, value in self._values.items() if value != _definition(key).default}

    def of_images(self) -> dict[str, object]:
        """Return what differs from the defaults and images depend on, ready for JSON."""
        return {key: value for key, value in self.differences().items() if _definition(key).affects_image}

    def of_encodings(self) -> tuple[tuple[str, object], ...]:
        """Return what differs from the defaults and encodings of prompts depend on, sorted by key."""
        changed = (key for key in self.differences() if _definition(key).affects_encoding)
        return tuple((key, self[key]) for key in sorted(changed))

    def to_json(self) -> dict[str, object]:
        """Every key with its value, ready for JSON: the body of GET /sdapi/v1/options."""
        return {key: as_json(self[key]) for key in self}

    def to_stored(self) -> dict[str, object]:
        """Return what config.json holds: the differences from the defaults, and the foreign keys as they came."""
        return {**self.differences(), **self.foreign}


def as_json(value: SettingValue) -> object:
    """Tuples as lists; everything else as it is."""
    return list(value) if isinstance(value, tuple) else value


def exact_setting(key: str) -> Setting | None:
    """The setting of exactly this key: unlike names of samplers, keys of a file do not ignore case."""
    return SETTINGS.get(key) if key in SETTINGS and SETTINGS.canonical(key) == key else None


def _ended(sentence: str) -> str:
    """End with a full stop, unless it is a question."""
    return sentence if sentence.endswith("?") else f"{sentence}."


def _definition(key: str) -> Setting:
    setting = exact_setting(key)
    if setting is None:
        near = get_close_matches(key, SETTINGS, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; GET /sdapi/v1/options lists all keys"
        raise UnknownSettingError(_ended(f"There is no setting {key!r}{hint}"))
    return setting
