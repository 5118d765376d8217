"""The frame of every subcommand: flags out of the arguments, errors as one sentence."""

import argparse
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from modules.errors import FeatherweightError
from modules.flags.flags import Flags

TERMINAL_EVERY_S, FILE_EVERY_S = 0.1, 10.0


class StatusLine:
    """Line of progress on stderr: on a terminal written over again, in a file a line now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._every_s = TERMINAL_EVERY_S if self._is_terminal else FILE_EVERY_S
        self._shown_at = time.monotonic()
        self._write: Callable[[], None] | None = None

    def show(self, text: Callable[[], str], bar: str = "") -> None:
        """Show what `text` gives, on a terminal after the bar, where it is time for it."""

        def write() -> None:
            line = f"\r{bar}{text():<60}" if self._is_terminal else text().strip()
            print(line, end="" if self._is_terminal else "\n", file=sys.stderr, flush=True)

        self._write = write
        now = time.monotonic()
        if now - self._shown_at >= self._every_s:
            self._shown_at = now
            write()

    def end(self) -> None:
        """Show the last state, and leave it there."""
        if self._write is not None:
            self._write()
        if self._is_terminal:
            print(file=sys.stderr)


def flags_of(arguments: argparse.Namespace, **changes: Any) -> Flags:
    """The flags among the arguments that were given; `changes` win."""
    given = {f.name: getattr(arguments, f.name) for f in fields(Flags) if hasattr(arguments, f.name)}
    return Flags(**{**given, **changes})


def run_guarded(run: Callable[[], int]) -> int:
    """The exit code of `run`; 1 for an error that says what is wrong, which is printed."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        return run()
    except FeatherweightError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
