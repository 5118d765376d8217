"""Pasted infotexts and the fields of scripts: which values a text gives to a script's components.

A script says so in `infotext_fields`, as scripts for the reference UI do: pairs of a component and either the name of
an infotext field or a function of all fields.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

log = logging.getLogger(__name__)

InfotextFields: TypeAlias = Sequence[tuple[Any, str | Callable[[Mapping[str, Any]], Any]]]
"""What a script sets: a component, and the name of an infotext's field or a function of all fields."""


@dataclass(frozen=True)
class PastedFields:
    """A script's components as `ui` returned them once, and what fills which. Kept from then, because `ui` is called
    again for another page and says it anew."""

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
        """By its place among the components, what the infotext gives to a component; without those that it says nothing
        of.

        A field's text becomes a value of the type that the component has at first. What does not convert is left out
        and logged, and so is what a function of the script raises.
        """
        places = {id(self.components[place]): place for place in self.places}
        values: dict[int, Any] = {}
        for component, source in self.sources:
            if id(component) not in places:
                continue
            try:
                value = source(parsed) if callable(source) else _converted(component, parsed.get(source))
            except Exception:  # pasted text may come from anywhere, and the function is somebody else's code
                log.warning("The script %s cannot paste %r.", self.title, source, exc_info=True)
                continue
            if value is not None:
                values[places[id(component)]] = value
        return values


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
