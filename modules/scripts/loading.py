"""What is being loaded: while an extension's file runs for the first time, what it registers goes to its library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.errors import InvalidValueError

if TYPE_CHECKING:
    from modules.scripts.adapters import ExtraNetworks
    from modules.scripts.callbacks import Callbacks
    from modules.scripts.program import Program


@dataclass(frozen=True)
class Loading:
    """A file while it is loaded: "extension/file.py", and where what it registers goes."""

    extension: str
    callbacks: Callbacks
    adapters: ExtraNetworks
    program: Program


_LOADING: ContextVar[Loading | None] = ContextVar("loading", default=None)


@contextmanager
def while_loading(loading: Loading) -> Iterator[None]:
    """While open, whatever is registered belongs to this file."""
    token = _LOADING.set(loading)
    try:
        yield
    finally:
        _LOADING.reset(token)


def loading_now(what: str) -> Loading:
    """The file that is being loaded; raises `InvalidValueError` at any other time, naming what was called."""
    found = _LOADING.get()
    if found is None:
        raise InvalidValueError(
            f"{what} was called while no extension is loaded. Call it at the top level of the script's file."
        )
    return found
