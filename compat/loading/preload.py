"""Flags of the command line that extensions add in `preload.py`, by `preload(parser)`, as in the reference UI."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from compat.loading.guards import LOADING_LIMIT_S, within
from modules.scripts.acting import Acting, acting
from modules.scripts.extension import Extension


class _Parser(ArgumentParser):
    """argparse that raises instead of ending the program."""

    def error(self, message: str) -> Any:
        raise ValueError(message)


def extension_flags(extensions: Iterable[Extension], argv: list[str] | None = None) -> dict[str, Any]:
    """The values of all flags that extensions add, by name. One whose preload.py fails is named among its faults and
    adds none."""
    words = [*sys.argv[1:], *shlex.split(os.environ.get("COMMANDLINE_ARGS", ""))] if argv is None else argv
    found: dict[str, Any] = {}
    for extension in extensions:
        file = extension.folder / "preload.py"
        if not extension.is_enabled or extension.is_built_in or not file.is_file():
            continue
        parser = _Parser(add_help=False, allow_abbrev=False)
        try:
            within(LOADING_LIMIT_S, partial(_ask, file, extension, parser))
            found |= vars(parser.parse_known_args(words)[0])
        except (Exception, SystemExit) as error:  # somebody else's code must not cost the program
            extension.note("preload.py", error)
    return found


def _ask(file: Path, extension: Extension, parser: ArgumentParser) -> None:
    spec = importlib.util.spec_from_file_location(f"featherweight_preload.{extension.name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with acting(Acting(f"{extension.name}/preload.py", owner=extension)):
        spec.loader.exec_module(module)
        if hasattr(module, "preload"):
            module.preload(parser)
