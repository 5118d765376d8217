"""A registry: the place where a new sampler, schedule, format or family enters without an existing file changing."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from modules.errors import UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Names to entries, in order of registration; lookups ignore case and also know aliases.

    `what` names the entries in error messages ("sampler"). An unknown name raises `UnknownNameError` that lists the
    known ones; a name taken twice raises `ValueError` that says by which entry.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._entries: dict[str, T] = {}
        self._lookup: dict[str, str] = {}

    def add(self, name: str, entry: T, aliases: tuple[str, ...] = ()) -> T:
        """Register `entry` under `name` and `aliases`; returns the entry."""
        for key in (name, *aliases):
            taken_by = self._lookup.get(key.lower())
            if taken_by is not None and taken_by != name:
                raise ValueError(f"{self.what} name {key!r} is already taken by {taken_by!r}")
        if name in self._entries:
            raise ValueError(f"{self.what} {name!r} is registered twice")
        self._entries[name] = entry
        for key in (name, *aliases):
            self._lookup[key.lower()] = name
        return entry

    def replace(self, name: str, entry: T) -> T:
        """Put another entry in the place of a registered one; returns it."""
        self._entries[self.canonical(name)] = entry
        return entry

    def remove(self, name: str) -> T:
        """Take an entry out again, with its aliases; returns it."""
        name = self.canonical(name)
        self._lookup = {key: of for key, of in self._lookup.items() if of != name}
        return self._entries.pop(name)

    def register(self, name: str, aliases: tuple[str, ...] = ()) -> Callable[[T], T]:
        """Decorator form of `add`, for entries that are functions or classes."""
        return lambda entry: self.add(name, entry, aliases)

    def get(self, name: str) -> T:
        """The entry for a name or alias, in any case."""
        return self._entries[self.canonical(name)]

    def canonical(self, name: str) -> str:
        """The registered name behind a name or alias."""
        known = self._lookup.get(name.lower())
        if known is None:
            raise UnknownNameError.of(self.what, name, self._entries)
        return known

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._lookup

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> Iterator[tuple[str, T]]:
        """Pairs of registered name and entry, in order of registration."""
        return iter(self._entries.items())
