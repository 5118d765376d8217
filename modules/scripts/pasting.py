"""Pasted infotexts and the fields of scripts: which values a text gives to a script's components.

A script says so in `infotext_fields`, as scripts for the reference UI do: pairs of a component and either the name of
an infotext field or a function of all fields.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from modules.errors import FeatherweightError

log = logging.getLogger(__name__)

InfotextFields: TypeAlias = Sequence[tuple[Any, str | Callable[[Mapping[str, Any]], Any]]]
"""What a script sets: a component, and the name of an infotext's field or a function of all fields."""


@dataclass(frozen=True)
class LeftOut:
    """Value of a function in `infotext_fields` that could not take all of a text, and sentences that say what not."""

    value: Any
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class PastedFields:
    """A script's components as `ui` returned them once, and what fills which. Kept from then, because `ui` is called
    again for another page and says it again."""

    title: str
    components: tuple[Any, ...]
    sources: InfotextFields

    @classmethod
    def of(cls, title: str, components: Sequence[Any], sources: InfotextFields | None) -> PastedFields:
        """Right after `ui`, which has set the script's `infotext_fields`."""
        return cls(title, tuple(components), tuple(sources or ()))

    @property
    def places(self) -> list[int]:
        """Which of the components may be filled, in their order."""
        wanted = {id(component) for component, _ in self.sources}
        return [place for place, component in enumerate(self.components) if id(component) in wanted]

    def values(self, parsed: Mapping[str, Any]) -> dict[int, Any]:
        """Return what the infotext gives to each component, by its place among them; without those that it says nothing
        of.

        A field's text becomes a value of the type that the component has at first. What does not convert is left out
        and logged, and so is what a function of the script raises.
        """
        return self.read(parsed).values

    def read(self, parsed: Mapping[str, Any]) -> ReadFields:
        """The pasted values, with the names of the fields that were read and what was refused."""
        places = {id(self.components[place]): place for place in self.places}
        looked = _Looked(parsed)
        values: dict[int, Any] = {}
        refused: list[str] = []
        for component, source in self.sources:
            if id(component) not in places:
                continue
            try:
                value = source(looked) if callable(source) else _converted(component, looked.get(source))
            except Exception as error:  # pasted text may come from anywhere, and the function is somebody else's code
                log.warning("The script %s cannot paste %r.", self.title, source, exc_info=True)
                if isinstance(error, FeatherweightError):
                    refused.append(f"{self.title}: {error}")
                continue
            if isinstance(value, LeftOut):
                refused += [f"{self.title}: {sentence}" for sentence in value.sentences]
                value = value.value
            if value is not None:
                values[places[id(component)]] = value
        return ReadFields(values, frozenset(looked.keys_found), tuple(dict.fromkeys(refused)))


@dataclass(frozen=True)
class ReadFields:
    """Fields that an infotext gives to a script: values by the places of its components, the fields of the infotext
    that the script looked at, and a sentence about each value that it refused."""

    values: dict[int, Any]
    keys: frozenset[str]
    refused: tuple[str, ...]


class _Looked(dict[str, Any]):
    """Fields of an infotext that remember which of them were asked for."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.keys_found: set[str] = set()

    def _look(self, key: object) -> None:
        if isinstance(key, str) and super().__contains__(key):
            self.keys_found.add(key)

    def __getitem__(self, key: str) -> Any:
        self._look(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._look(key)
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._look(key)
        return super().get(key, default)


def _converted(component: Any, text: Any) -> Any:
    """An infotext's value as the component's type; raises ValueError for a number that is none."""
    known = getattr(component, "value", None)
    if text is None:
        return None
    if isinstance(known, bool):
        return str(text).strip().lower() == "true"
    if isinstance(known, list):
        return [part.strip() for part in str(text).split(",") if part.strip()]
    if isinstance(known, int | float):
        number = float(text)
        return int(number) if number == int(number) and isinstance(known, int) else number
    return str(text)
