"""What an extension's file may do while it is loaded: register callbacks, types of tags and pages of cards, and ask for
the program. While it runs for the first time, what it registers goes to its library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from modules.errors import InvalidValueError
from modules.scripts.adapters import ExtraNetwork, ExtraNetworks, MakePage
from modules.scripts.callbacks import Callbacks, Moment, Registered
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


def program_now() -> Program:
    """The program that loads the extension's file, to be kept for what the file registers. At the top level of the
    file; raises `InvalidValueError` at any other time."""
    return loading_now("program_now").program


def register_callback(moment: Moment, function: Callable[..., Any], name: str | None = None) -> None:
    """Register a callback of the extension that is being loaded; raises `InvalidValueError` at any other time."""
    loading = loading_now(f"on_{moment.value}")
    loading.callbacks.add(Registered(moment, function, loading.extension, name))


def register_extra_network(extra_network: ExtraNetwork) -> None:
    """Have this object called for its tags. At the top level of a script's file; raises `InvalidValueError` at any
    other time, and for a name that is taken."""
    loading = loading_now("register_extra_network")
    loading.adapters.add_type(extra_network, loading.extension)


def register_page(make: MakePage) -> None:
    """Add a page of cards, built by `make(program)` when the program is there. At the top level of a script's file;
    raises `InvalidValueError` at any other time."""
    loading = loading_now("register_page")
    loading.adapters.add_page(make, loading.extension)
