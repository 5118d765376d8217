"""Copies of settings and databases before an update, in `backups/` of the data folder. Standard library only."""

import json
import secrets
import shutil
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.errors import InvalidValueError, OutputError
from modules.system.atomic_files import move_together, output_error, write_atomic
from modules.system.bounded import read_json_file
from modules.system.paths import Paths

FOLDER = "backups"
NOTE = "update.json"
AFTER = "after"  # of a backup: what an undo replaced
DATABASES = ("jobs.sqlite", "history.sqlite")
WAYS_BACK = frozenset(("after", "changes"))
"""In the note of an update that did something."""
CONFIG_VERSION = "featherweight_config_version"


@dataclass(frozen=True)
class Backup:
    """A folder below `backups/`, with what was noted of the update."""

    folder: Path

    @classmethod
    def begin(cls, paths: Paths) -> "Backup":
        """Copy settings and databases into a new folder. Raises `OutputError`."""
        name = time.strftime("%Y-%m-%d-%H%M%S")
        parent = paths.data_dir / FOLDER
        try:
            parent.mkdir(parents=True, exist_ok=True)
            number = 1
            while (folder := parent / (name if number == 1 else f"{name}-{number}")).exists():
                number += 1
            folder.mkdir(mode=0o700)
            for file in _files(paths):
                shutil.copy2(file, folder / file.name)
            for name in DATABASES:
                if (paths.data_dir / name).exists():
                    _copy_database(paths.data_dir / name, folder / name)
        except OSError as error:
            raise output_error("A backup", parent, error) from error
        return cls(folder)

    @classmethod
    def newest(cls, paths: Paths) -> "Backup":
        """The last update that was not undone. Raises `InvalidValueError` where there is none."""
        parent = paths.data_dir / FOLDER
        for folder in sorted(parent.iterdir(), reverse=True) if parent.is_dir() else ():
            backup = cls(folder)
            if (folder / NOTE).is_file() and not backup.note.get("undone") and backup.note.keys() & WAYS_BACK:
                return backup
        raise InvalidValueError(f"There is no update to undo: {parent} holds none.")

    @property
    def note(self) -> Mapping[str, Any]:
        """Read what was noted. Raises `InvalidValueError` for a damaged note."""
        try:
            return dict(read_json_file(self.folder / NOTE))
        except (OSError, ValueError, TypeError) as error:
            raise InvalidValueError(f"{self.folder / NOTE} cannot be read: {error}. Undo by hand.") from error

    def write_note(self, **facts: Any) -> None:
        """Note facts beside those that are there. Raises `OutputError`."""
        before = self.note if (self.folder / NOTE).exists() else {}
        try:
            write_atomic(self.folder / NOTE, json.dumps({**before, **facts}, indent=1).encode())
        except OSError as error:
            raise output_error(NOTE, self.folder, error) from error

    def put_back(self, paths: Paths, all_settings: bool) -> list[str]:
        """Put back the files whose format is another since, or with `all_settings` every one; what was there is kept
        in `after/`. Returns their names. Raises `OutputError`."""
        names = []
        for target in (*_files(paths), *(paths.data_dir / name for name in DATABASES)):
            source = self.folder / target.name
            if not source.is_file() or not (all_settings or _format_of(source) != _format_of(target)):
                continue
            try:
                after = self.folder / AFTER
                after.mkdir(exist_ok=True)
                present = (target.with_name(target.name + ending) for ending in ("", "-wal", "-shm"))
                moves = [(path, after / path.name) for path in present if path.exists()]
                copied = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
                try:
                    shutil.copy2(source, copied)
                    move_together([*moves, (copied, target)])
                finally:
                    copied.unlink(missing_ok=True)
            except OSError as error:
                raise output_error(target.name, target.parent, error) from error
            names.append(target.name)
        return names

    def remove(self) -> None:
        """Delete it: nothing was updated."""
        shutil.rmtree(self.folder)


def _files(paths: Paths) -> list[Path]:
    """Settings, defaults, styles, users, folders of models: those that exist."""
    patterns = (found for path in paths.styles_files for found in sorted(path.parent.glob(path.name)))
    wanted = (paths.config_file, paths.ui_config_file, *patterns, paths.extra_folders_file)
    return [
        path for path in (*wanted, *(paths.data_dir / name for name in ("users.json", "user.css"))) if path.is_file()
    ]


def _copy_database(source: Path, target: Path) -> None:
    """A whole copy, with what SQLite keeps beside the file; one that SQLite cannot read is copied as it is."""
    try:
        with closing(sqlite3.connect(source, timeout=5)) as db, closing(sqlite3.connect(target)) as copy:
            db.backup(copy)
    except sqlite3.OperationalError as error:
        raise OutputError(f"{source} could not be copied: {error}. End what uses it, then try again.") from error
    except sqlite3.DatabaseError:
        shutil.copy2(source, target)


def _format_of(path: Path) -> object:
    """Read what tells formats apart: the version that a database or config.json says."""
    try:
        if path.suffix == ".sqlite":
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
                return db.execute("PRAGMA user_version").fetchone()[0]
        if path.suffix == ".json":
            return read_json_file(path).get(CONFIG_VERSION)
    except (OSError, ValueError, AttributeError, sqlite3.Error):
        return "unreadable"
    return None
