"""The frame of every subcommand: flags out of the arguments, errors as one sentence."""

import argparse
import logging
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from modules.errors import FeatherweightError
from modules.flags.flags import Flags


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
