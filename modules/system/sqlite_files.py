"""A SQLite file that outlives damage, and what goes wrong with one, told apart: damaged, locked, full, read-only."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from modules.errors import BusyError, OutputError
from modules.system.atomic_files import keep_aside
from modules.system.texts import page_text

log = logging.getLogger(__name__)

LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
OF_VALUES = (
    *(sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT),
    *(sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE),
)
OTHER_TABLES = ("no such table", "no such column", "table ")
"""How SQLite's sentences begin about tables that are not as ours. The same result code is given for a value that an SQL
function does not take."""
_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
}


class DamageError(sqlite3.DatabaseError):
    """Damage that a check of a file found."""


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
    has_other_tables = result_code(error) == sqlite3.SQLITE_ERROR and str(error).startswith(OTHER_TABLES)
    return is_corrupt(error) or has_other_tables


def is_refusal(error: Exception) -> bool:
    """Whether a write failed for what was to be written, so that it will never work; else for the file or the disk."""
    if not isinstance(error, sqlite3.Error):
        return not isinstance(error, OutputError)  # OverflowError, UnicodeError, MemoryError: no parameter can hold it
    has_code = hasattr(error, "sqlite_errorcode")
    return result_code(error) in OF_VALUES if has_code else "closed database" not in str(error)


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


def add_columns(db: sqlite3.Connection, table: str, columns: Mapping[str, str]) -> None:
    """Add those of these columns (name: declaration) that a table of an earlier version has not."""
    have = {row["name"] for row in db.execute(f"PRAGMA table_info({table})")}
    for column, declaration in columns.items():
        if column not in have:
            db.execute(f"ALTER TABLE {table} ADD COLUMN {column} {declaration}")


@dataclass(frozen=True)
class DatabaseWords:
    """Words that are said of a database: its `name` at the beginning of each sentence, and how the sentences go on."""

    name: str
    damaged: str  # after "It was kept as ..., and a new one was begun; "
    locked: str  # after "... is locked by another program"
    unusable: str  # with {reason}


class Database:
    """One connection to a SQLite file in WAL mode, behind `lock`. A damaged file is kept aside and a new one begun,
    which `notices` says. `path` None keeps all in memory."""

    def __init__(
        self,
        path: Path | None,
        version: int,
        prepare: Callable[[sqlite3.Connection], None],
        words: DatabaseWords,
        lock_wait_s: float,
    ) -> None:
        """`prepare` makes the tables that are missing, in one file after the other. Raises `OutputError` or `BusyError`
        for a file that is fine but cannot be used, and `OutputError` for one of a newer version."""
        self.path = path
        self.lock = threading.RLock()
        self.notices: tuple[str, ...] = ()
        self._version, self._prepare, self._words, self._lock_wait_s = version, prepare, words, lock_wait_s
        try:
            self.db = self._connect()
        except sqlite3.Error as error:
            if path is None or not (is_damage(error) or path.is_dir()):
                raise self.sentence(error) from error
            self._begin(path, error)

    def begin_again(self, error: sqlite3.Error) -> None:
        """Keep the file aside, which this error says is damaged, and begin an empty one. Raises `OutputError`."""
        assert self.path is not None
        self.db.close()
        self._begin(self.path, error)

    @contextmanager
    def using(self, changes: bool = False) -> Iterator[sqlite3.Connection]:
        """The connection, for one question or, with `changes`, one transaction. A file that turns out to be damaged is
        replaced, which is raised too. Raises `OutputError` and `BusyError`."""
        with self.lock:
            try:
                if changes:
                    with self.db:
                        yield self.db
                else:
                    yield self.db
            except sqlite3.ProgrammingError:
                raise
            except sqlite3.Error as error:
                if self.path is not None and is_corrupt(error):
                    self.begin_again(error)
                    raise OutputError(self.notices[-1]) from error
                raise self.sentence(error) from error

    def sentence(self, error: sqlite3.Error) -> OutputError | BusyError:
        """Return what to raise for an error of SQLite's."""
        subject = f"{self._words.name} ({self.path or 'memory'})"
        if is_locked(error):
            return BusyError(f"{subject} is locked by another program{self._words.locked}")
        return OutputError(f"{subject} {self._words.unusable.format(reason=reason_of(error))}")

    def _connect(self) -> sqlite3.Connection:
        name = str(self.path) if self.path else ":memory:"
        db = sqlite3.connect(name, timeout=self._lock_wait_s, check_same_thread=False)
        try:
            db.row_factory = sqlite3.Row
            check_version(db, self._version, name)
            db.execute("PRAGMA journal_mode=WAL")
            self._prepare(db)
            db.execute(f"PRAGMA user_version = {self._version}")
            db.commit()
        except BaseException:
            db.close()
            raise
        return db

    def _begin(self, path: Path, error: sqlite3.Error) -> None:
        try:
            aside = keep_database_aside(path)
            self.db = self._connect()
        except (OSError, sqlite3.Error) as second:
            raise OutputError(
                f"{path} is damaged ({error}) and could not be kept aside ({second}). Move it away by hand."
            ) from second
        notice = page_text(
            f"{self._words.name}, {path.name}, was damaged ({error}). It was kept as {aside.name}, and a new one was "
            f"begun; {self._words.damaged}"
        )
        self.notices = (*self.notices, notice)
        log.warning("%s", notice)
