"""Whose code runs: the extension's file that is loaded, or whose function is called. What it registers goes to its
library, and what fails is named after it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from modules.errors import InvalidValueError
from modules.scripts.acting import Acting, acting, acting_now
from modules.scripts.adapters import ExtraNetwork, ExtraNetworks, MakePage
from modules.scripts.callbacks import Callbacks, Moment, Registered
from modules.scripts.foreign import PLAIN, ForeignLoading
from modules.scripts.program import Program

T = TypeVar("T")


@dataclass
class Loading(Acting):
    """A file of an extension, and where what it registers goes. `is_left_out`: it took too long, and what it still
    registers is refused."""

    callbacks: Callbacks
    adapters: ExtraNetworks
    program: Program
    foreign: ForeignLoading = PLAIN
    is_left_out: bool = False

    def limited(self, call: Callable[[], T]) -> T:
        return self.foreign.limited(call) if self.is_foreign else call()


_LOADING: ContextVar[Loading | None] = ContextVar("loading", default=None)
_FILE = "__featherweight_file__"
"""The name of a script's module that says which file it is, where callbacks are registered while nothing else does."""


@contextmanager
def while_loading(loading: Loading) -> Iterator[None]:
    """While open, whatever is registered belongs to this file."""
    token = _LOADING.set(loading)
    try:
        with acting(loading):
            yield
    finally:
        _LOADING.reset(token)


def mark_module(module: ModuleType, loading: Loading) -> None:
    """Have callbacks that this module registers later belong to `loading`."""
    vars(module)[_FILE] = loading


def loading_now(what: str) -> Loading:
    """The file that is being loaded; raises `InvalidValueError` at any other time, naming what was called."""
    found = _LOADING.get()
    if found is None:
        raise InvalidValueError(
            f"{what} was called while no extension is loaded. Call it at the top level of the script's file."
        )
    return found


def calling_file() -> Loading | None:
    """The extension's file among those that are called now, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_globals.get(_FILE)
        if isinstance(found, Loading):
            return found
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def program_now() -> Program:
    """The program that loads the extension's file, to be kept for what the file registers. At the top level of the
    file; raises `InvalidValueError` at any other time."""
    return loading_now("program_now").program


def register_callback(moment: Moment, function: Callable[..., Any], name: str | None = None) -> None:
    """Register a callback of the extension whose code runs: while its file is loaded, or from one of its functions
    (until `remove_callback`). Raises `InvalidValueError` where no extension's code runs."""
    now = acting_now()
    loading = _LOADING.get() or (now if isinstance(now, Loading) else None) or calling_file()
    loading = loading or loading_now(f"on_{moment.value}")
    if loading.is_left_out:
        raise InvalidValueError(f"{loading.extension} was left out, because it took too long to load.")
    loading.callbacks.add(Registered(moment, function, loading.extension, name, loading))


def host_callbacks() -> Callbacks:
    """The callbacks that the code that runs may register and take away. Raises `InvalidValueError` where no
    extension's code runs."""
    now = acting_now()
    loading = (now if isinstance(now, Loading) else None) or calling_file() or loading_now("remove_callbacks")
    return loading.callbacks


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
