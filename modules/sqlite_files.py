"""What goes wrong with a SQLite file, told apart: damaged, locked, full, read-only; and a damaged one kept aside."""

import sqlite3
from pathlib import Path

from modules.atomic_files import keep_aside
from modules.errors import OutputError

LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
}


class DamageError(sqlite3.DatabaseError):
    """What a check of a file found."""


def result_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; the bits above say more than is asked."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def is_locked(error: sqlite3.Error) -> bool:
    """Whether another program holds the file."""
    return result_code(error) in LOCKED


def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether the file's bytes are spoilt; for a file that was in order when it was opened."""
    return isinstance(error, DamageError) or result_code(error) in DAMAGED


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is no database of ours: spoilt, something else, or a table with other columns."""
    return is_corrupt(error) or result_code(error) == sqlite3.SQLITE_ERROR


def reason_of(error: sqlite3.Error) -> str:
    """Why a file cannot be used, for people."""
    return _REASONS.get(result_code(error), str(error))


def check_version(db: sqlite3.Connection, version: int, name: str) -> None:
    """Raise `OutputError` for a file that a newer version of the program has written."""
    if db.execute("PRAGMA user_version").fetchone()[0] > version:
        raise OutputError(
            f"{name} was written by a newer version of this program. Use that version, or another --data-dir."
        )


def check_whole(db: sqlite3.Connection) -> None:
    """Raise `DamageError` for a file whose pages do not fit together."""
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise DamageError(found)


def keep_database_aside(path: Path) -> Path:
    """Rename a damaged database, with what SQLite keeps next to it; its new path. Raises OSError."""
    aside = keep_aside(path)
    for ending in ("-wal", "-shm"):
        beside = path.with_name(path.name + ending)
        if beside.exists():
            beside.replace(aside.with_name(aside.name + ending))
    return aside
