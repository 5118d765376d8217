"""The durable record of the queue: written before work runs, updated when it ends. SQLite in WAL mode, fully synced.

Nothing that goes wrong with the file ends the queue: a new entry that cannot be recorded is refused with a sentence,
later changes are kept in memory until the file takes them, and a damaged file is kept aside and a new one begun.
"""

import json
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.atomic_files import keep_aside
from modules.errors import BusyError, FeatherweightError, OutputError
from modules.jobs.job import Entry, JobStatus

log = logging.getLogger(__name__)

VERSION = 2
SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    task_id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    request TEXT NOT NULL,
    created_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL,
    error TEXT,
    outcome TEXT
);
CREATE INDEX IF NOT EXISTS jobs_by_time ON jobs (created_at);
"""
ADDED_COLUMNS = {"title": "TEXT NOT NULL DEFAULT ''", "left_over": "INTEGER NOT NULL DEFAULT 0"}  # since version 2
LOCK_WAIT_S = 2.0
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
SERVER_ENDED = "The server ended before this was finished."

Write = tuple[str, tuple[object, ...]]


@dataclass(frozen=True)
class JobRecord:
    """A row: `request` as the entry recorded it; `outcome` lists image paths and infotexts of an image job.

    `left_over`: the server ended before the work did, and nobody has repeated or dismissed it yet.
    """

    task_id: str
    kind: str
    title: str
    status: JobStatus
    request: dict[str, Any]
    created_at: float
    started_at: float | None
    ended_at: float | None
    error: str | None
    outcome: dict[str, Any] | None
    left_over: bool


class JobStore:
    """One connection behind a lock; every change is one transaction. `path` None keeps the table in memory."""

    def __init__(self, path: Path | None) -> None:
        """Open or begin the file. What was damaged is kept aside, and `notices` says so.

        Raises `OutputError` or `BusyError` for a file that is fine but cannot be used, and for one of a newer version.
        """
        self.notices: tuple[str, ...] = ()
        self._path = path
        self._lock = threading.RLock()
        self._late: deque[Write] = deque()
        try:
            self._db = self._connect()
        except sqlite3.Error as error:
            if path is None or not (_is_damage(error) or path.is_dir()):
                raise self._sentence(error) from error
            self._begin_anew(error)

    # -- changes -----------------------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Record work before it runs. An older record of the same task id stays under another name.

        Raises `BusyError` while another program holds the file, `OutputError` where it cannot be written.
        """
        request = json.dumps(entry.recorded_request())
        columns = "INSERT INTO jobs (task_id, kind, title, status, request, created_at) VALUES (?, ?, ?, ?, ?, ?)"
        values = (entry.task_id, entry.kind, _text(entry.title), JobStatus.QUEUED, request, entry.created_at)
        try:
            with self._lock:
                self._write(
                    ("UPDATE jobs SET task_id = task_id || '~' || rowid WHERE task_id = ?", (entry.task_id,)),
                    (columns, values),
                )
        except sqlite3.Error as error:
            raise self._sentence(error) from error

    def started(self, task_id: str) -> None:
        """The worker took it."""
        self._put(
            "UPDATE jobs SET status = ?, started_at = ? WHERE task_id = ?", JobStatus.RUNNING, time.time(), task_id
        )

    def going_on(self, task_id: str, outcome: dict[str, Any]) -> None:
        """What has come of it so far: images that are finished stand in the record whatever happens next."""
        self._put("UPDATE jobs SET outcome = ? WHERE task_id = ?", json.dumps(outcome), task_id)

    def ended(
        self,
        task_id: str,
        status: JobStatus,
        error: str | None = None,
        outcome: dict[str, Any] | None = None,
        left_over: bool = False,
    ) -> None:
        """It is final. Without `outcome`, what came of it so far stays in the record. The images that a finished job
        began with leave it: they may be large, and nobody repeats it."""
        self._put(
            "UPDATE jobs SET status = ?, ended_at = ?, error = ?, outcome = coalesce(?, outcome), left_over = ?, "
            "request = CASE WHEN ? THEN json_remove(request, '$.start') ELSE request END WHERE task_id = ?",
            *(status, time.time(), None if error is None else _text(error)),
            *(None if outcome is None else json.dumps(outcome), left_over, status is JobStatus.DONE, task_id),
        )

    def mark_left_over(self) -> list[JobRecord]:
        """What was waiting or running when the last server ended is interrupted now; returns what is left over, oldest
        first. Only for the one process that works off the queue."""
        self._put(
            "UPDATE jobs SET status = ?, ended_at = ?, error = ?, left_over = 1 WHERE status IN (?, ?)",
            *(JobStatus.INTERRUPTED, time.time(), SERVER_ENDED, JobStatus.QUEUED, JobStatus.RUNNING),
        )
        return self.left_over()

    def dismiss(self, task_id: str) -> None:
        """Nobody needs to be told of this unfinished work any more."""
        self._put("UPDATE jobs SET left_over = 0 WHERE task_id = ?", task_id)

    def flush(self) -> bool:
        """Write the changes that could not be written when they were made; False while they still cannot be."""
        with self._lock:
            while self._late:
                try:
                    self._write(self._late[0])
                except sqlite3.Error as error:
                    log.warning("The record of jobs cannot be written (%s); it is tried again.", error)
                    return False
                self._late.popleft()
        return True

    @property
    def is_behind(self) -> bool:
        """Whether changes wait for the file to take them."""
        return bool(self._late)

    def close(self) -> None:
        """Close the file; the store cannot be used afterwards."""
        with self._lock:
            if not self.flush():
                log.error("%d changes of the record of jobs could not be written.", len(self._late))
            self._db.close()

    # -- questions ---------------------------------------------------------------------------------------------------

    def get(self, task_id: str) -> JobRecord | None:
        """The record of a task id, or None."""
        rows = self._query("SELECT * FROM jobs WHERE task_id = ?", (task_id,))
        return rows[0] if rows else None

    def recent(self, limit: int = 50) -> list[JobRecord]:
        """The newest first."""
        return self._query("SELECT * FROM jobs ORDER BY created_at DESC LIMIT ?", (limit,))

    def left_over(self) -> list[JobRecord]:
        """What a server left unfinished and nobody has repeated or dismissed, oldest first."""
        return self._query("SELECT * FROM jobs WHERE left_over = 1 ORDER BY created_at", ())

    # -- the file ----------------------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        name = str(self._path) if self._path else ":memory:"
        db = sqlite3.connect(name, timeout=LOCK_WAIT_S, check_same_thread=False)
        try:
            db.row_factory = sqlite3.Row
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > VERSION:
                raise OutputError(
                    f"{name} was written by a newer version of this program. Use that version, or another --data-dir."
                )
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise _Damage(found)
            with db:
                db.executescript(SCHEMA)
                have = {row["name"] for row in db.execute("PRAGMA table_info(jobs)")}
                for column, kind in ADDED_COLUMNS.items():
                    if column not in have:
                        db.execute(f"ALTER TABLE jobs ADD COLUMN {column} {kind}")
                db.execute(f"PRAGMA user_version = {VERSION}")
        except BaseException:
            db.close()
            raise
        return db

    def _begin_anew(self, error: sqlite3.Error) -> None:
        """Keep the damaged file aside and begin an empty one."""
        assert self._path is not None
        try:
            aside = keep_aside(self._path)
            for ending in ("-wal", "-shm"):
                beside = self._path.with_name(self._path.name + ending)
                if beside.exists():
                    beside.replace(aside.with_name(aside.name + ending))
            self._db = self._connect()
        except (OSError, sqlite3.Error) as second:
            raise OutputError(
                f"{self._path} is damaged ({error}) and could not be kept aside ({second}). Move it away by hand."
            ) from second
        notice = (
            f"The record of jobs, {self._path.name}, was damaged ({error}). It was kept as {aside.name}, and a new one "
            "was begun; images are not affected."
        )
        self.notices = (*self.notices, notice)
        log.warning("%s", notice)

    def _write(self, *writes: Write) -> None:
        """One transaction; a file that turns out to be damaged is replaced, and the changes go into the new one."""
        with self._lock:
            try:
                self._execute(writes)
            except sqlite3.Error as error:
                if self._path is None or not _is_damage(error):
                    raise
                self._db.close()
                self._begin_anew(error)
                self._execute(writes)

    def _execute(self, writes: Sequence[Write]) -> None:
        with self._db:
            for sql, values in writes:
                self._db.execute(sql, values)

    def _put(self, sql: str, *values: object) -> None:
        """Write now or, where the file does not take it, later; never raises for the file."""
        with self._lock:
            self._late.append((sql, values))
            self.flush()

    def _sentence(self, error: sqlite3.Error) -> FeatherweightError:
        code = _code(error)
        place = self._path or "memory"
        if code in LOCKED:
            return BusyError(
                f"The record of jobs ({place}) is locked by another program, so nothing was put in line. Close that "
                "program, or try again in a moment."
            )
        reason = {
            sqlite3.SQLITE_FULL: "the disk is full",
            sqlite3.SQLITE_READONLY: "the file or its folder is read-only",
            sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
        }.get(code, str(error))
        return OutputError(
            f"The record of jobs ({place}) cannot be written: {reason}. Nothing was put in line. Free some space or "
            "allow writing there, then try again."
        )

    def _query(self, sql: str, values: Sequence[object]) -> list[JobRecord]:
        with self._lock:
            try:
                rows = self._db.execute(sql, values).fetchall()
            except sqlite3.ProgrammingError:
                raise
            except sqlite3.Error as error:
                if self._path is None or not _is_damage(error):
                    raise self._sentence(error) from error
                self._db.close()
                self._begin_anew(error)
                return []
        return [record for row in rows if (record := _record(row)) is not None]


class _Damage(sqlite3.DatabaseError):
    """What a check of the file found."""


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; the bits above say more than is asked."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is no database of ours: spoilt, something else, or a table with other columns."""
    return isinstance(error, _Damage) or _code(error) in (*DAMAGED, sqlite3.SQLITE_ERROR)


def _text(text: str) -> str:
    """Text as a database takes it: lone surrogates cannot be UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _record(row: sqlite3.Row) -> JobRecord | None:
    """A row as a record; None, and a line in the log, for one that somebody has edited into nonsense."""
    try:
        return JobRecord(
            task_id=row["task_id"],
            kind=row["kind"],
            title=row["title"],
            status=JobStatus(row["status"]),
            request=json.loads(row["request"]),
            created_at=float(row["created_at"]),
            started_at=row["started_at"],
            ended_at=row["ended_at"],
            error=row["error"],
            outcome=json.loads(row["outcome"]) if row["outcome"] else None,
            left_over=bool(row["left_over"]),
        )
    except (ValueError, TypeError) as error:
        log.warning("The record of the job %r cannot be read: %s", row["task_id"], error)
        return None
