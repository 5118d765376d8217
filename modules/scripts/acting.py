"""Whose code runs in this thread: an extension's file or one of its functions, or the program's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from modules.scripts.extension import Extension

T = TypeVar("T")


@dataclass
class Acting:
    """A file of an extension, as "extension/file.py"."""

    extension: str
    owner: Extension = field(default_factory=lambda: Extension("", Path(), is_built_in=True), kw_only=True)

    @property
    def is_foreign(self) -> bool:
        """Whether it is none of the program's own."""
        return not self.owner.is_built_in

    def limited(self, call: Callable[[], T]) -> T:
        """Return what its code gives. Raises what it raises; a subclass also ends what takes too long."""
        return call()


_ACTING: ContextVar[Acting | None] = ContextVar("acting", default=None)


@contextmanager
def acting(one: Acting | None) -> Iterator[None]:
    """While open, code of this extension runs."""
    token = _ACTING.set(one)
    try:
        yield
    finally:
        _ACTING.reset(token)


def acting_now() -> Acting | None:
    """Whose code runs in this thread; None: the program's own."""
    return _ACTING.get()


def is_foreign_code() -> bool:
    """Whether code of a user extension runs in this thread."""
    found = _ACTING.get()
    return found is not None and found.is_foreign
