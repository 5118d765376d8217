"""`python launch.py update [ARCHIVE]`: a newer version, after a backup, with a way back. Standard library only."""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from modules.cli.running import flags_of, run_guarded
from modules.errors import FeatherweightError, InvalidValueError
from modules.flags.flags import PATHS, add_arguments
from modules.setup.archive import REPLACED, changes_of, keep, put_in_place, take_out, unpack
from modules.setup.backup import Backup
from modules.setup.environment import Environment
from modules.setup.process import Outcome, Run, Runner, SetupError, say
from modules.system.folder_lock import FolderLock
from modules.system.paths import Paths, resolve_paths
from modules.version import VERSION

ROOT = Path(__file__).resolve().parent.parent.parent
LOCK = "requirements.lock"
SHOWN = 12
START = "Start python launch.py: it installs what this version needs."


def main(argv: Sequence[str]) -> int:
    """Update or undo. Exit code 0, or 1 for errors, such as a server that uses the data folder."""
    arguments = _parser().parse_args(argv)
    return run_guarded(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    paths = resolve_paths(flags_of(arguments), ROOT)
    lock = FolderLock(paths.data_dir, "update")
    try:
        run = Runner({**os.environ, "GIT_TERMINAL_PROMPT": "0"})
        if arguments.undo:
            undo(paths, run, all_settings=arguments.with_settings)
        elif arguments.archive:
            update_from(Path(arguments.archive).expanduser().absolute(), paths, run)
        else:
            update_by_git(paths, run)
    finally:
        lock.close()
    return 0


def update_by_git(paths: Paths, run: Run) -> None:
    """`git pull --ff-only`, after a backup. Raises `SetupError` with what git said; then nothing has changed."""
    if not (paths.root / ".git").exists():
        raise SetupError(
            f"{paths.root} is no git repository. Download an archive of the new version, then: "
            "python launch.py update ARCHIVE"
        )
    before = _commit(paths.root, run)
    backup = _begin(paths, run, commit=before)
    outcome = _git(paths.root, run, "pull", "--ff-only", "--quiet")
    if not outcome.ok:
        backup.remove()
        said = " ".join(outcome.output.split()) or f"exit status {outcome.returncode}"
        raise SetupError(
            f"git pull failed: {said} Nothing was changed. Files that you changed in {paths.root} can be put aside "
            "with git stash; without a network, update from an archive."
        )
    after = _commit(paths.root, run)
    if after == before:
        backup.remove()
        say(f"Featherweight {VERSION} is up to date ({before[:10]}).")
        return
    backup.write_note(after=after)
    listed = _git(paths.root, run, "log", "--format=%s", f"{before}..{after}").output.splitlines()
    say(f"Updated from {before[:10]} to {after[:10]}, {len(listed)} changes:")
    for line in listed[:SHOWN]:
        say(f"  {line}")
    _say_way_back(backup)


def update_from(archive: Path, paths: Paths, run: Run) -> None:
    """The files of an archive, after a backup. Raises `InvalidValueError` for one that is refused, `SetupError`."""
    if (paths.root / ".git").exists():
        raise InvalidValueError(f"{paths.root} is a git repository: python launch.py update (without an archive).")
    if not archive.is_file():
        raise InvalidValueError(f"{archive} is no file.")
    backup = _begin(paths, run, archive=archive.name)
    new = backup.folder / "new"
    try:
        names = unpack(archive, new)
        changes = changes_of(new, names, paths.root)
        keep(changes, paths.root, backup.folder)
        backup.write_note(changes=changes)
    except (FeatherweightError, OSError) as error:
        backup.remove()
        if isinstance(error, OSError):
            raise SetupError(f"{error.filename}: {error.strerror}. Nothing was changed.") from error
        raise
    try:
        put_in_place(changes, new, paths.root)
    except OSError as error:
        _put_back(backup, paths.root)
        backup.remove()
        raise SetupError(
            f"{error.filename or paths.root} cannot be written: {error.strerror}. Everything was put back."
        ) from error
    shutil.rmtree(new)
    if not any(changes.values()):
        backup.remove()
        say(f"Featherweight {VERSION} is up to date: the archive holds the same files.")
        return
    found = re.search(r'^VERSION = "(.+)"$', (paths.root / "modules/version.py").read_text("utf-8"), re.MULTILINE)
    say(
        f"Updated from {VERSION} to {found.group(1) if found else 'another version'}: "
        f"{len(changes['replaced'])} files replaced, {len(changes['added'])} new, {len(changes['removed'])} removed."
    )
    _say_way_back(backup)


def undo(paths: Paths, run: Run, all_settings: bool = False) -> None:
    """Put back the version before the last update. Raises `SetupError`, and `InvalidValueError` where there is none."""
    backup = Backup.newest(paths)
    note = backup.note
    if "commit" in note:
        now = _commit(paths.root, run)
        if now != note.get("after"):
            raise SetupError(
                f"The program is at {now[:10]}, not where the update left it ({str(note.get('after'))[:10]}). Go back "
                f"by hand: git reset --keep {note['commit'][:10]}"
            )
        outcome = _git(paths.root, run, "reset", "--keep", "--quiet", note["commit"])
        if not outcome.ok:
            raise SetupError(f"git reset failed: {' '.join(outcome.output.split())} Nothing was changed.")
    else:
        _put_back(backup, paths.root)
    names = backup.put_back(paths, all_settings)
    backup.write_note(undone=True)
    say(f"Back to {note['commit'][:10] if 'commit' in note else note['version']}. {START}")
    if names:
        say(f"Put back: {', '.join(names)}; as they were since the update: {backup.folder / 'after'}")


def _begin(paths: Paths, run: Run, **facts: str) -> Backup:
    """The backup, and a note of what is installed."""
    backup = Backup.begin(paths)
    environment = Environment.of(paths.root, os.environ)
    python = environment.python if environment.python.exists() else Path(sys.executable)
    frozen = run([str(python), "-m", "pip", "freeze", "--disable-pip-version-check"])
    if frozen.ok:
        (backup.folder / LOCK).write_text(frozen.output, encoding="utf-8")
    else:
        say("What is installed could not be noted (pip freeze failed); the update goes on.")
    backup.write_note(version=VERSION, **facts)
    return backup


def _put_back(backup: Backup, root: Path) -> None:
    """The files of the program as they were. Raises `SetupError`; they are still in the backup then."""
    try:
        take_out(backup.note["changes"], root, backup.folder)
    except OSError as error:
        raise SetupError(
            f"{error.filename} cannot be put back: {error.strerror}. The files as they were are in "
            f"{backup.folder / REPLACED}: copy them over {root}, or run python launch.py update --undo again."
        ) from error


def _commit(root: Path, run: Run) -> str:
    outcome = _git(root, run, "rev-parse", "HEAD")
    if not outcome.ok:
        raise SetupError(f"git does not answer in {root}: {' '.join(outcome.output.split())} Install git.")
    return outcome.output.strip()


def _git(root: Path, run: Run, *words: str) -> Outcome:
    return run(["git", "-C", str(root), *words])


def _say_way_back(backup: Backup) -> None:
    say(f"Settings, databases and the list of packages from before are in {backup.folder}.")
    say(f"{START} The way back: python launch.py update --undo")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launch.py update",
        description="Get a newer version, by git or from a downloaded archive, after a backup of settings.",
    )
    parser.add_argument("archive", nargs="?", metavar="ARCHIVE", help="a .zip or .tar.gz of the program")
    parser.add_argument("--undo", action="store_true", help="go back to the version before the last update")
    parser.add_argument(
        "--with-settings",
        action="store_true",
        help="with --undo: put back all settings and databases, not only those with another format",
    )
    add_arguments(parser, (PATHS,))
    return parser
