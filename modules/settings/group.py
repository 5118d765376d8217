"""Groups of settings as classes: each setting is one row of a class body, and reads as an attribute that mypy knows.

    class SamplerSettings(SettingsGroup):
        section = Section(id="sampler-params", title="Sampler parameters")

        eta_ddim = number("Eta for DDIM", 0.0, minimum=0, maximum=1)

`SamplerSettings(values).eta_ddim` is a float; `SamplerSettings.eta_ddim.setting` is the definition. The name of the
attribute is the setting's key in config.json and in the API.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Generic, Never, Self, TypedDict, TypeVar, Unpack, overload

from modules.settings.setting import Section, Setting, SettingType, SettingValue

V_co = TypeVar("V_co", covariant=True)


class Extras(TypedDict, total=False):
    """The fields of `Setting` that any type may carry. A row with `infotext` affects images, unless it says so."""

    hint: str
    infotext: str
    infotext_aliases: tuple[str, ...]
    needs_reload: bool
    api_writable: bool
    by_hand: bool
    hidden: bool
    optional: bool
    affects_image: bool
    affects_encoding: bool


class NumberExtras(Extras, total=False):
    """Details that only numbers carry besides `Extras`."""

    minimum: float
    maximum: float
    step: float


class SettingsGroup:
    """The settings of one section, read from `values`: a view that costs nothing to make. Read-only."""

    section: ClassVar[Section]

    def __init__(self, values: Mapping[str, SettingValue]) -> None:
        self.values = values

    @classmethod
    def definitions(cls) -> tuple[Setting, ...]:
        """The settings of this group in order of the class body."""
        return tuple(row.setting for row in vars(cls).values() if isinstance(row, SettingAttribute))


class SettingAttribute(Generic[V_co]):
    """One row of a `SettingsGroup`; what an instance of the group gives for it is of the type in brackets."""

    setting: Setting
    """The definition; there once the attribute stands in a group."""

    def __init__(
        self,
        read: Callable[[SettingValue], V_co],
        type: SettingType,
        label: str,
        default: SettingValue,
        choices: tuple[str, ...] | str | None = None,
        **extras: Unpack[NumberExtras],
    ) -> None:
        self._read = read
        extras.setdefault("affects_image", "infotext" in extras or extras.get("affects_encoding", False))
        self._define: Callable[[str, Section], Setting] = lambda key, section: Setting(
            key=key, section=section, type=type, label=label, default=default, choices=choices, **extras
        )

    def __set_name__(self, group: type[SettingsGroup], name: str) -> None:
        self.setting = self.define(name, group.section)

    @overload
    def __get__(self, group: None, owner: type[SettingsGroup]) -> Self: ...

    @overload
    def __get__(self, group: SettingsGroup, owner: type[SettingsGroup]) -> V_co: ...

    def __get__(self, group: SettingsGroup | None, owner: type[SettingsGroup]) -> Self | V_co:
        return self if group is None else self.of(group.values)

    def __set__(self, group: SettingsGroup, value: Never) -> None:
        raise AttributeError(f"Settings do not change; {self.key} of new ones is set with Settings.changed().")

    @property
    def key(self) -> str:
        """The name in config.json."""
        return self.setting.key

    def of(self, values: Mapping[str, SettingValue]) -> V_co:
        """The value of this setting among all `values`, for code that holds the attribute of a class in a table."""
        return self._read(values[self.key])

    def as_set(self, values: Mapping[str, SettingValue]) -> SettingValue:
        """The value as it was set, for what images record: a whole number stays one where `of` reads a float."""
        return values[self.key]

    def define(self, key: str, section: Section) -> Setting:
        """The definition under a key; raises ValueError for a default that the setting itself would refuse."""
        return self._define(key, section)


def flag(label: str, default: bool, **extras: Unpack[Extras]) -> SettingAttribute[bool]:
    """On or off."""
    return SettingAttribute(_as_bool, SettingType.BOOL, label, default, **extras)


def whole(label: str, default: int, **extras: Unpack[NumberExtras]) -> SettingAttribute[int]:
    """A whole number."""
    return SettingAttribute(_as_int, SettingType.INT, label, default, **extras)


def number(label: str, default: float, **extras: Unpack[NumberExtras]) -> SettingAttribute[float]:
    """A number."""
    return SettingAttribute(_as_float, SettingType.FLOAT, label, default, **extras)


def text(label: str, default: str, **extras: Unpack[Extras]) -> SettingAttribute[str]:
    """Any text."""
    return SettingAttribute(_as_text, SettingType.TEXT, label, default, **extras)


def color(label: str, default: str, **extras: Unpack[Extras]) -> SettingAttribute[str]:
    """A color as "#rrggbb"."""
    return SettingAttribute(_as_text, SettingType.COLOR, label, default, **extras)


def choice(
    label: str, default: str | None, choices: tuple[str, ...] | str, **extras: Unpack[Extras]
) -> SettingAttribute[str]:
    """One of `choices`, or of what a provider such as "checkpoints" offers. Null reads as an empty text."""
    return SettingAttribute(_as_text, SettingType.CHOICE, label, default, choices, **extras)


def many(
    label: str, default: tuple[str, ...], choices: tuple[str, ...] | str | None = None, **extras: Unpack[Extras]
) -> SettingAttribute[tuple[str, ...]]:
    """A list of `choices` (see `choice`), or of free texts where `choices` is None."""
    return SettingAttribute(_as_texts, SettingType.LIST, label, default, choices, **extras)


def kept(section: Section, defaults: Mapping[str, SettingValue]) -> tuple[Setting, ...]:
    """Keys of the reference UI without an effect here: accepted and kept, never shown."""
    return tuple(
        Setting(
            key=key,
            label=key,
            default=default,
            type=_type_of(default),
            section=section,
            hidden=True,
            optional=default is None,
        )
        for key, default in defaults.items()
    )


def _type_of(default: SettingValue) -> SettingType:
    match default:
        case bool():
            return SettingType.BOOL
        case int() | float():
            # Numbers are kept as they come: without an effect there is no reason to refuse 0.5 for 0.
            return SettingType.FLOAT
        case tuple():
            return SettingType.LIST
        case _:
            return SettingType.TEXT


def _as_bool(value: SettingValue) -> bool:
    assert isinstance(value, bool), value
    return value


def _as_int(value: SettingValue) -> int:
    assert isinstance(value, int) and not isinstance(value, bool), value
    return value


def _as_float(value: SettingValue) -> float:
    assert isinstance(value, int | float) and not isinstance(value, bool), value
    return float(value)


def _as_text(value: SettingValue) -> str:
    assert value is None or isinstance(value, str), value
    return value or ""


def _as_texts(value: SettingValue) -> tuple[str, ...]:
    assert isinstance(value, tuple), value
    return value
