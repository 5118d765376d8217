"""`python launch.py extensions`: look at extensions, install what they take for granted, take that back."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from compat.store.check import LIMIT_S, check_all, extensions_in
from compat.store.packages import RECORD, install_checked, install_packages, missing_packages, undo_last
from modules.cli.running import flags_of, run_guarded
from modules.errors import InvalidValueError
from modules.flags.flags import PATHS, add_arguments
from modules.system.paths import resolve_paths

ROOT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str]) -> int:
    """Do what the words say. Exit code 0, or 1 for errors and for an extension that fails."""
    arguments = _parser().parse_args(argv)
    return run_guarded(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    paths = resolve_paths(flags_of(arguments), ROOT)
    try:
        if arguments.packages:
            missing = missing_packages()
            print(f"Installing {', '.join(missing)}." if missing else "All of the set are installed.")
            install_checked(lambda: install_packages(missing, "the set"), paths.cache_dir / RECORD)
            return 0
        if arguments.undo_packages:
            print(undo_last(paths.cache_dir / RECORD))
            return 0
    except RuntimeError as error:
        raise InvalidValueError(str(error)) from error
    folder = Path(arguments.check).expanduser() if arguments.check else paths.extensions_dir
    if not folder.is_dir():
        raise InvalidValueError(f"{folder} is no folder. Give the folder of an extension, or one that holds some.")
    found = []
    for seen in check_all(extensions_in(folder), arguments.limit):
        print(seen.line(), flush=True)
        found.append(seen)
    loaded = sum(one.loads or bool(one.replaced_by) for one in found)
    print(f"{loaded} of {len(found)} load; {sum(one.works == 'yes' for one in found)} pass a check of their main work.")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(one) for one in found], indent=1), encoding="utf-8")
    return 0 if loaded == len(found) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launch.py extensions",
        description="Try extensions, each alone in a process of its own: whether it loads, what it takes part in, what "
        "fails first, and its main work where a check is known. The lines can be pasted into a report.",
    )
    parser.add_argument("--check", metavar="FOLDER", help="an extension or a folder of some (default: extensions/)")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one extension (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write what was seen there as well")
    parser.add_argument("--packages", action="store_true", help="install what the reference UI brings itself")
    parser.add_argument("--undo-packages", action="store_true", help="take back what the last installation changed")
    add_arguments(parser, (PATHS,))
    return parser
