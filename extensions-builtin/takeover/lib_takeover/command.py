"""`python launch.py import FOLDER`: take over a folder of the reference UI or of Forge."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lib_takeover.takeover import Target, take_over
from modules.cli.running import flags_of, run_guarded
from modules.flags.flags import PATHS, add_arguments
from modules.history.importing import RUNNING
from modules.history.store import History
from modules.scripts.foreign import PLAIN
from modules.scripts.library import ScriptLibrary
from modules.scripts.settings import add_settings
from modules.services import ForeignProgram
from modules.settings.store import SettingsStore
from modules.system.folder_lock import FolderLock
from modules.system.paths import resolve_paths

ROOT = Path(__file__).resolve().parents[3]


def main(argv: Sequence[str], foreign: ForeignProgram | None = None) -> int:
    """Take over and say what. Exit code 0, or 1 for errors, such as a server that uses the data folder."""
    arguments = _parser().parse_args(argv)
    return run_guarded(lambda: _run(arguments, foreign))


def _run(arguments: argparse.Namespace, foreign: ForeignProgram | None) -> int:
    flags = flags_of(arguments)
    paths = resolve_paths(flags, ROOT)
    lock = FolderLock(paths.data_dir, "import")  # a running server has a button for this in Settings
    try:
        paths.ensure()
        settings = SettingsStore(paths.config_file)
        scripts = ScriptLibrary(foreign=foreign or PLAIN).add_enabled(flags, paths, settings.current)
        add_settings(scripts.callbacks)  # extensions have settings too
        settings.adopt()
        history = History(paths.data_dir / "history.sqlite", paths.outputs_dir / "trash")
        try:
            # The server's importer begins with what is noted as running.
            target = Target(paths, settings, history, lambda folder: history.imports.note(folder, RUNNING, {}))
            report = take_over(Path(arguments.folder), target)
        finally:
            history.close()
    finally:
        lock.close()
    print("\n".join((*report.lines, "", "Images are read into the history from the next start on.")))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launch.py import",
        description="Take over a folder of the reference UI or of Forge: models by their paths, styles, settings, "
        "defaults of the forms, outputs into the history. Nothing there is changed.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="the folder that holds its webui.py, or its --data-dir")
    add_arguments(parser, (PATHS,))
    return parser
