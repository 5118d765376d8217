"""Shorthand to write the settings of one section as a table, one line each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict, Unpack

from modules.settings.setting import Kind, Section, Setting, SettingValue


class Extras(TypedDict, total=False):
    """The fields of `Setting` that any kind may carry."""

    hint: str
    infotext: str
    infotext_aliases: tuple[str, ...]
    needs_reload: bool
    api_writable: bool
    hidden: bool
    optional: bool


class NumberExtras(Extras, total=False):
    """What only numbers carry beside `Extras`."""

    minimum: float
    maximum: float
    step: float


@dataclass(frozen=True)
class Group:
    """Makes settings that belong to `section`."""

    section: Section

    def flag(self, key: str, label: str, default: bool, **extras: Unpack[Extras]) -> Setting:
        return Setting(key=key, label=label, default=default, kind=Kind.BOOL, section=self.section, **extras)

    def whole(self, key: str, label: str, default: int, **extras: Unpack[NumberExtras]) -> Setting:
        return Setting(key=key, label=label, default=default, kind=Kind.INT, section=self.section, **extras)

    def number(self, key: str, label: str, default: float, **extras: Unpack[NumberExtras]) -> Setting:
        return Setting(key=key, label=label, default=default, kind=Kind.FLOAT, section=self.section, **extras)

    def text(self, key: str, label: str, default: str, **extras: Unpack[Extras]) -> Setting:
        return Setting(key=key, label=label, default=default, kind=Kind.TEXT, section=self.section, **extras)

    def color(self, key: str, label: str, default: str, **extras: Unpack[Extras]) -> Setting:
        return Setting(key=key, label=label, default=default, kind=Kind.COLOR, section=self.section, **extras)

    def choice(
        self, key: str, label: str, default: str | None, choices: tuple[str, ...] | str, **extras: Unpack[Extras]
    ) -> Setting:
        """`choices`: the allowed values, or the name of a provider such as "checkpoints"."""
        return Setting(
            key=key, label=label, default=default, kind=Kind.CHOICE, section=self.section, choices=choices, **extras
        )

    def many(
        self,
        key: str,
        label: str,
        default: tuple[str, ...],
        choices: tuple[str, ...] | str | None = None,
        **extras: Unpack[Extras],
    ) -> Setting:
        """A list of `choices` (see `choice`), or of free texts where `choices` is None."""
        return Setting(
            key=key, label=label, default=default, kind=Kind.LIST, section=self.section, choices=choices, **extras
        )

    def reserved(self, defaults: Mapping[str, SettingValue]) -> tuple[Setting, ...]:
        """Keys of the reference UI without an effect here: accepted and kept, never shown."""
        return tuple(
            Setting(
                key=key,
                label=key,
                default=default,
                kind=_kind_of(default),
                section=self.section,
                hidden=True,
                optional=default is None,
            )
            for key, default in defaults.items()
        )


def _kind_of(default: SettingValue) -> Kind:
    match default:
        case bool():
            return Kind.BOOL
        case int() | float():
            # Numbers are kept as they come: without an effect there is no reason to refuse 0.5 for 0.
            return Kind.FLOAT
        case tuple():
            return Kind.LIST
        case _:
            return Kind.TEXT
