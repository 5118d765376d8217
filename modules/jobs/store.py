"""The durable record of jobs: written before a job runs, updated when it ends. SQLite in WAL mode, fully synced.

A job that was running or waiting when the process died is still in the table; `unfinished` returns it, so that a
later start can tell the user or run it again (seeds were fixed at submit, so a rerun gives the same images).
"""

import json
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.jobs.job import JobStatus

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


@dataclass(frozen=True)
class JobRecord:
    """A row: `request` as `request_to_json` wrote it; `outcome` lists image paths and infotexts of a finished job."""

    task_id: str
    kind: str
    status: JobStatus
    request: dict[str, Any]
    created_at: float
    started_at: float | None
    ended_at: float | None
    error: str | None
    outcome: dict[str, Any] | None


class JobStore:
    """One connection behind a lock; every method is one transaction. `path` None keeps the table in memory."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(str(path) if path else ":memory:", check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        with self._lock, self._db:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)

    def add(self, task_id: str, kind: str, request: dict[str, Any], created_at: float) -> None:
        """Record a job before it runs. An older job of this task id stays in the table as "ID (row number)"."""
        with self._lock, self._db:
            self._db.execute("UPDATE jobs SET task_id = task_id || ' (' || rowid || ')' WHERE task_id = ?", (task_id,))
            self._db.execute(
                "INSERT INTO jobs (task_id, kind, status, request, created_at) VALUES (?, ?, ?, ?, ?)",
                (task_id, kind, JobStatus.QUEUED, json.dumps(request), created_at),
            )

    def started(self, task_id: str) -> None:
        """The worker took the job."""
        with self._lock, self._db:
            self._db.execute(
                "UPDATE jobs SET status = ?, started_at = ? WHERE task_id = ?",
                (JobStatus.RUNNING, time.time(), task_id),
            )

    def ended(
        self, task_id: str, status: JobStatus, error: str | None = None, outcome: dict[str, Any] | None = None
    ) -> None:
        """The job is final."""
        with self._lock, self._db:
            self._db.execute(
                "UPDATE jobs SET status = ?, ended_at = ?, error = ?, outcome = ? WHERE task_id = ?",
                (status, time.time(), error, json.dumps(outcome) if outcome is not None else None, task_id),
            )

    def get(self, task_id: str) -> JobRecord | None:
        """The record of a task id, or None."""
        rows = self._query("SELECT * FROM jobs WHERE task_id = ?", (task_id,))
        return rows[0] if rows else None

    def recent(self, limit: int = 50) -> list[JobRecord]:
        """The newest jobs first."""
        return self._query("SELECT * FROM jobs ORDER BY created_at DESC LIMIT ?", (limit,))

    def unfinished(self) -> list[JobRecord]:
        """Jobs that were waiting or running when they were last heard of, oldest first."""
        return self._query(
            "SELECT * FROM jobs WHERE status IN (?, ?) ORDER BY created_at", (JobStatus.QUEUED, JobStatus.RUNNING)
        )

    def close(self) -> None:
        """Close the file; the store cannot be used afterwards."""
        with self._lock:
            self._db.close()

    def _query(self, sql: str, values: Sequence[object]) -> list[JobRecord]:
        with self._lock:
            rows = self._db.execute(sql, values).fetchall()
        return [
            JobRecord(
                task_id=row["task_id"],
                kind=row["kind"],
                status=JobStatus(row["status"]),
                request=json.loads(row["request"]),
                created_at=row["created_at"],
                started_at=row["started_at"],
                ended_at=row["ended_at"],
                error=row["error"],
                outcome=json.loads(row["outcome"]) if row["outcome"] else None,
            )
            for row in rows
        ]
