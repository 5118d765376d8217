"""Names that extensions import from `modules.errors` besides our own names: how they report what failed."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

from compat.facades.refusal import refusing
from modules.scripts.acting import acting_now

log = logging.getLogger("extensions")
exception_records: list[Any] = []


def report(message: str, *, exc_info: bool = False) -> None:
    """Write a line into the log, with the traceback of what failed."""
    author = acting_now()
    log.error("%s%s", f"{author.owner.name}: " if author is not None else "", message, exc_info=exc_info)


def print_error_explanation(message: str) -> None:
    """Write a line into the log."""
    report(message)


def display(e: BaseException, task: str, *, full_traceback: bool = False) -> None:
    """Write an error into the log with what was done."""
    report(f"{task}: {type(e).__name__}: {e}\n{''.join(traceback.format_exception(e))}")


def display_once(e: BaseException, task: str) -> None:
    """Do the same."""
    display(e, task)


def run(code: Callable[[], Any], task: str) -> None:
    """Call a function; what it raises is written into the log."""
    try:
        code()
    except Exception as error:  # somebody else's function, whose failure is reported
        display(error, task)


def record_exception() -> None:
    """Do nothing: what fails is kept by the program, for each extension."""


def get_exceptions() -> list[Any]:
    """GET /featherweight/v1/extensions lists what failed."""
    return []


def format_traceback(tb: Any) -> list[list[str]]:
    """A traceback as [[where, line], ...]."""
    return [[f"{one.filename}, line {one.lineno}, {one.name}", str(one.line)] for one in traceback.extract_tb(tb)]


def format_exception(e: BaseException, tb: Any) -> dict[str, Any]:
    """An error for JSON."""
    return {"exception": str(e), "traceback": format_traceback(tb)}


def check_versions() -> None:
    """The program checks its packages when it starts."""


__getattr__ = refusing("errors", {})
