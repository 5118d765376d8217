"""Mappings that are looked up each time they are asked, in which extensions put entries of their own."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TypeVar

V = TypeVar("V")


class LookedUp(MutableMapping[str, V]):
    """Entries that there are (`look`) and those that extensions put there, which stand until they take them away and
    change nothing of the program. An entry of the program's cannot be taken away; that is passed over."""

    def __init__(self, look: Callable[[], Mapping[str, V]]) -> None:
        self._look = look
        self.__module__ = look.__module__  # the facade that offers it
        self._own: dict[str, V] = {}

    def _now(self) -> dict[str, V]:
        return {**self._look(), **self._own}

    def __getitem__(self, name: str) -> V:
        return self._now()[name]

    def __setitem__(self, name: str, value: V) -> None:
        self._own[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self._now():
            raise KeyError(name)
        self._own.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def clear(self) -> None:
        """Take away what extensions put there."""
        self._own.clear()
