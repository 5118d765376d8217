"""The durable record of the queue: written before work runs, updated when it ends. SQLite in WAL mode, fully synced.

Nothing that goes wrong with the file ends the queue: a new entry that cannot be recorded is refused with a sentence,
later changes are kept in memory until the file takes them, and a damaged file is kept aside and a new one begun.
"""

import json
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.errors import InvalidValueError
from modules.jobs.input_files import InputFiles, names_in
from modules.jobs.job import IMAGE_TYPE, Entry, JobStatus, Standing
from modules.processing.record.made import MadeImage
from modules.processing.request.result import GeneratedImage, ImageRole
from modules.system.atomic_files import fingerprint
from modules.system.bounded import read_json
from modules.system.sqlite_files import Database, DatabaseWords, add_columns, check_whole, is_damage, is_refusal

log = logging.getLogger(__name__)

VERSION = 5
IMAGES = """
CREATE TABLE IF NOT EXISTS job_images (
    task_id TEXT NOT NULL,
    key TEXT NOT NULL,
    path TEXT,
    fingerprint TEXT,
    kind TEXT NOT NULL,
    seed TEXT NOT NULL,
    subseed TEXT NOT NULL,
    infotext TEXT NOT NULL,
    is_done INTEGER NOT NULL,
    PRIMARY KEY (task_id, key)
);
"""
"""Seeds are text: they go up to 2^64 - 1, and an integer of SQLite's to 2^63 - 1."""
SCHEMA = f"""
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
{IMAGES}
CREATE TABLE IF NOT EXISTS job_inputs (
    name TEXT NOT NULL, task_id TEXT NOT NULL, PRIMARY KEY (name, task_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS task_notes (
    task_id TEXT NOT NULL, key TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (task_id, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS queue_state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
ADDED_COLUMNS = {  # since version 2, and since version 3
    "title": "TEXT NOT NULL DEFAULT ''",
    "left_over": "INTEGER NOT NULL DEFAULT 0",
    "position": "REAL NOT NULL DEFAULT 0",
    "user": "TEXT NOT NULL DEFAULT ''",
    "model": "TEXT NOT NULL DEFAULT ''",
    "needs": "TEXT NOT NULL DEFAULT '[]'",
    "attempts": "INTEGER NOT NULL DEFAULT 0",
    "is_pinned": "INTEGER NOT NULL DEFAULT 0",
    "is_bookmarked": "INTEGER NOT NULL DEFAULT 0",
    "is_lasting": "INTEGER NOT NULL DEFAULT 1",
}
COLUMNS = ("task_id", "kind", "status", "created_at", "started_at", "ended_at", "error", "outcome", *ADDED_COLUMNS)
"""All but the request."""
LATER_INDEXES = """
CREATE INDEX IF NOT EXISTS jobs_by_status ON jobs (status, position);
CREATE INDEX IF NOT EXISTS jobs_by_end ON jobs (ended_at);
"""
LOCK_WAIT_S = 2.0
WORDS = DatabaseWords(
    name="The record of jobs",
    damaged="images are not affected.",
    locked=", so nothing was put in line. Close that program, or try again in a moment.",
    unusable="cannot be written: {reason}. Nothing was put in line. Free some space or allow writing there, then try "
    "again.",
)
FINAL = (JobStatus.DONE, JobStatus.FAILED, JobStatus.INTERRUPTED)
IMAGES_SO_FAR = """(
    SELECT json_object('images', json_group_array(json_object(
        'path', path, 'role', kind, 'seed', json(seed), 'subseed', json(subseed), 'infotext', infotext, 'key', key)))
    FROM (SELECT * FROM job_images WHERE task_id = ? AND is_done ORDER BY rowid) HAVING count(*) > 0)"""


@dataclass(frozen=True)
class Write:
    """One change of the file. `is_synced` False: it may wait for the next one that is, should the power fail."""

    sql: str
    values: tuple[object, ...] = ()
    is_synced: bool = True


@dataclass(frozen=True)
class JobRecord:
    """A row: `request` as the entry recorded it; `outcome` lists image paths and infotexts of an image job. For the
    others see `modules.jobs.job.Standing`."""

    task_id: str
    type: str
    title: str
    status: JobStatus
    request: dict[str, Any]
    created_at: float
    started_at: float | None
    ended_at: float | None
    error: str | None
    outcome: dict[str, Any] | None
    standing: Standing


@dataclass(frozen=True)
class ImageRecord:
    """An image of a job that has not ended: finished (`is_done`), or about to appear at its path with this
    `modules.system.atomic_files.fingerprint`."""

    image: MadeImage
    fingerprint: str | None
    is_done: bool

    def exists(self) -> bool:
        """Whether it is finished: by the record, or because the file is there and is the one that was announced."""
        if self.is_done:
            return True
        try:
            return self.fingerprint is not None and fingerprint(self.image.path) == self.fingerprint
        except OSError:
            return False


class RecordFile:
    """The file of the record: every change is one transaction, which waits where the file does not take it."""

    def __init__(self, path: Path | None) -> None:
        self.database = Database(path, VERSION, _prepare, WORDS, LOCK_WAIT_S)
        self._late: deque[tuple[Write, ...]] = deque()

    def write(self, *writes: Write) -> None:
        """Write now; a file that turns out to be damaged is replaced, and the changes go into the new one. Raises
        `BusyError`, `OutputError`, and `InvalidValueError` for a value that no file takes."""
        try:
            self._write(writes)
        except Exception as error:
            if is_refusal(error):
                raise _refusal(error) from error
            if isinstance(error, sqlite3.Error):
                raise self.database.sentence(error) from error
            raise

    def put(self, *writes: Write) -> None:
        """Write now or, where the file does not take it, later; never raises for the file. Raises `InvalidValueError`
        for a value that no file takes; nothing is written then."""
        with self.database.lock:
            self._late.append(writes)
            for refused, error in self._flush():
                if refused is writes:
                    raise _refusal(error) from error

    def flush(self) -> bool:
        """Write the changes that could not be written when they were made; False while they still cannot be."""
        with self.database.lock:
            self._flush()
            return not self._late

    def _flush(self) -> list[tuple[tuple[Write, ...], Exception]]:
        """Write what waits; returns the changes that no file takes, which wait no longer: all after them would."""
        refused = []
        while self._late:
            try:
                self._write(self._late[0])
            except Exception as error:
                if not is_refusal(error):
                    log.warning("The record of jobs cannot be written (%s); it is tried again.", error)
                    break
                log.error("A change of the record of jobs is left out: %s: %s", type(error).__name__, error)
                refused.append((self._late[0], error))
            self._late.popleft()
        return refused

    @property
    def is_behind(self) -> bool:
        """Whether changes wait for the file to take them."""
        return bool(self._late)

    def close(self) -> None:
        """Write what waits and close the file."""
        with self.database.lock:
            if not self.flush():
                log.error("%d changes of the record of jobs could not be written.", len(self._late))
            self.database.db.close()

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        """Return the rows that are asked for; of a file that turns out to be damaged, of the new one. Raises
        `BusyError`, `OutputError`."""
        with self.database.lock:
            try:
                return self.database.db.execute(sql, values).fetchall()
            except sqlite3.ProgrammingError:
                raise
            except sqlite3.Error as error:
                if self.database.path is None or not is_damage(error):
                    raise self.database.sentence(error) from error
                self.database.begin_again(error)
                return self.database.db.execute(sql, values).fetchall()

    def _write(self, writes: Sequence[Write]) -> None:
        with self.database.lock:
            try:
                self._execute(writes)
            except sqlite3.Error as error:
                if self.database.path is None or not is_damage(error):
                    raise
                self.database.begin_again(error)
                self._execute(writes)

    def _execute(self, writes: Sequence[Write]) -> None:
        db, is_synced = self.database.db, any(write.is_synced for write in writes)
        db.execute(f"PRAGMA synchronous={'FULL' if is_synced else 'NORMAL'}")
        with db:
            for write in writes:
                db.execute(write.sql, write.values)


class ImageRecords:
    """The images of work that has not ended."""

    def __init__(self, file: RecordFile) -> None:
        self._file = file

    def saving(self, task_id: str, image: GeneratedImage, path: Path, found: str) -> None:
        """The file of an image is about to appear; `found` is the fingerprint that it will have."""
        self._file.put(Write(*_image_row(task_id, image, path, found, is_done=False), is_synced=False))

    def done(self, task_id: str, image: GeneratedImage) -> None:
        """An image is finished: it is in the record whatever happens next, and tries are counted from zero again. One
        without a file is only in memory, and is made again after a restart."""
        self._file.put(
            Write(*_image_row(task_id, image, image.path, None, is_done=True)),
            Write("UPDATE jobs SET attempts = 0 WHERE task_id = ?", (task_id,)),
        )

    def moved(self, before: Path, after: Path) -> None:
        """The file of an image, of whatever job, ended or not, is elsewhere now."""
        old, new = _text(str(before)), _text(str(after))
        self._file.put(
            Write("UPDATE job_images SET path = ?, fingerprint = NULL, is_done = 1 WHERE path = ?", (new, old)),
            Write(
                "UPDATE jobs SET outcome = replace(outcome, json_quote(?), json_quote(?)) WHERE instr(outcome, ?)",
                (old, new, json.dumps(old)),
            ),
        )

    def of(self, task_id: str | None = None) -> dict[str, list[ImageRecord]]:
        """The images by task ids, finished or about to be. Of one job, or of all."""
        images: dict[str, list[ImageRecord]] = {}
        chosen = "SELECT * FROM job_images WHERE path IS NOT NULL AND task_id = coalesce(?, task_id) ORDER BY rowid"
        for row in self._file.rows(chosen, (task_id,)):
            found = _image_record(row)
            if found is not None:
                images.setdefault(row["task_id"], []).append(found)
        return images


class JobStore:
    """The record of all work. `path` None keeps it in memory."""

    def __init__(self, path: Path | None) -> None:
        """Open or begin the file. What was damaged is kept aside, and `notices` says so.

        Raises `OutputError` or `BusyError` for a file that is fine but cannot be used, and for one of a newer version.
        """
        self.inputs = InputFiles(path.with_name(f"{path.stem}-inputs") if path else None)
        self.file = RecordFile(path)
        self.images = ImageRecords(self.file)

    @property
    def notices(self) -> tuple[str, ...]:
        """List what was kept aside."""
        return self.file.database.notices

    # -- changes -----------------------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Record work before it runs. An older record of the same task id stays under another name.

        Raises `BusyError` while another program holds the file, `OutputError` where it cannot be written.
        """
        recorded = entry.recorded_request(self.inputs.text_of)
        standing = entry.standing
        row = {
            "task_id": entry.task_id,
            "kind": entry.type,
            "title": _text(entry.title),
            "status": JobStatus.QUEUED,
            "request": json.dumps(recorded),
            "created_at": entry.created_at,
            "position": standing.position,
            "user": _text(standing.user),
            "model": _text(standing.model),
            "needs": json.dumps(standing.needs),
            "is_lasting": standing.is_lasting,
            "is_pinned": standing.is_pinned,
        }
        older = "SELECT task_id || '~' || rowid FROM jobs WHERE task_id = ?"
        writes = [
            Write(f"UPDATE job_inputs SET task_id = ({older}) WHERE task_id = ?", (entry.task_id,) * 2),
            Write("UPDATE jobs SET task_id = task_id || '~' || rowid WHERE task_id = ?", (entry.task_id,)),
            Write("DELETE FROM job_images WHERE task_id = ?", (entry.task_id,)),
            Write("DELETE FROM task_notes WHERE task_id = ?", (entry.task_id,)),
            Write(f"INSERT INTO jobs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values())),
            *self._input_rows(entry.task_id, recorded),
        ]
        self.file.write(*writes)

    def changed(self, entry: Entry) -> None:
        """Note that what waiting work asks for has changed. Raises as `add`."""
        recorded = entry.recorded_request(self.inputs.text_of)
        standing = entry.standing
        before = self._names("task_id = ?", (entry.task_id,))
        values = (json.dumps(recorded), _text(entry.title), _text(standing.model), json.dumps(standing.needs))
        self.file.write(
            Write(
                "UPDATE jobs SET request = ?, title = ?, model = ?, needs = ? WHERE task_id = ?",
                (*values, entry.task_id),
            ),
            Write("DELETE FROM job_inputs WHERE task_id = ?", (entry.task_id,)),
            *self._input_rows(entry.task_id, recorded),
        )
        self._remove_unused(before)

    def renamed(self, task_id: str, title: str) -> None:
        """Work has another title."""
        self.file.put(Write("UPDATE jobs SET title = ? WHERE task_id = ?", (_text(title), task_id)))

    def stands(self, entries: Sequence[Entry]) -> None:
        """The order of waiting work has changed."""
        self.file.put(
            *(
                Write(
                    "UPDATE jobs SET position = ?, is_pinned = ?, is_bookmarked = ? WHERE task_id = ?",
                    (item.standing.position, item.standing.is_pinned, item.standing.is_bookmarked, item.task_id),
                )
                for item in entries
            )
        )

    def bookmarked(self, task_id: str, is_bookmarked: bool) -> None:
        """Somebody marks work, finished or not, or takes the mark away."""
        self.file.put(Write("UPDATE jobs SET is_bookmarked = ? WHERE task_id = ?", (is_bookmarked, task_id)))

    def started(self, task_id: str) -> None:
        """The worker took it."""
        self.file.put(
            Write(
                "UPDATE jobs SET status = ?, started_at = ?, attempts = attempts + 1 WHERE task_id = ?",
                (JobStatus.RUNNING, time.time(), task_id),
                is_synced=False,
            )
        )

    def outcome_changed(self, task_id: str, outcome: dict[str, Any]) -> None:
        """Note that what came of ended work is less than it was: somebody has deleted an image of it."""
        self.file.put(Write("UPDATE jobs SET outcome = ? WHERE task_id = ?", (json.dumps(outcome), task_id)))

    def ended(
        self,
        task_id: str,
        status: JobStatus,
        error: str | None = None,
        outcome: dict[str, Any] | None = None,
    ) -> None:
        """Note that it is final. Without `outcome`, the images that were finished stand in the record."""
        self.file.put(*_ending(task_id, status, error, outcome))

    def withdrawn(self, task_ids: Sequence[str], error: str) -> None:
        """Waiting work was taken out of the line: all of it in one transaction."""
        self.file.put(
            *(write for task_id in task_ids for write in _ending(task_id, JobStatus.INTERRUPTED, error, None))
        )

    def note(self, task_id: str, key: str, data: Mapping[str, Any]) -> None:
        """A task does something that a later try must know of, see `Task.note`; tries are counted from 0 again."""
        self.file.put(
            Write("INSERT OR REPLACE INTO task_notes VALUES (?, ?, ?)", (task_id, key, json.dumps(data))),
            Write("UPDATE jobs SET attempts = 0 WHERE task_id = ?", (task_id,)),
        )

    def notes(self, task_id: str) -> dict[str, dict[str, Any]]:
        """Return what a task has noted, by key; what somebody has edited into nonsense is left out."""
        notes = {}
        for key, text in self.file.rows("SELECT key, data FROM task_notes WHERE task_id = ?", (task_id,)):
            try:
                data = read_json(text, constant=float)
            except (ValueError, TypeError):
                continue
            if isinstance(data, dict):
                notes[str(key)] = data
        return notes

    def put_back(self, task_id: str) -> None:
        """The server ends in order while this runs: it waits again, and the try does not count."""
        self.file.put(
            Write(
                "UPDATE jobs SET status = ?, attempts = max(attempts - 1, 0) WHERE task_id = ?",
                (JobStatus.QUEUED, task_id),
            )
        )

    def remove(self, task_ids: Sequence[str]) -> None:
        """Forget ended work, with the images that it began with; what it made stays where it is."""
        for task_id in task_ids:
            names = self._names("task_id = ?", (task_id,))
            self.file.put(*_forgetting("task_id = ?", (task_id,)))
            self._remove_unused(names)

    def prune(self, kept: int) -> None:
        """Forget ended work but the newest `kept` and what is bookmarked."""
        old = (
            "task_id IN (SELECT task_id FROM jobs WHERE status IN ('done', 'failed', 'interrupted') AND NOT "
            "is_bookmarked ORDER BY ended_at DESC LIMIT -1 OFFSET ?)"
        )
        names = self._names(old, (kept,))
        self.file.put(*_forgetting(old, (kept,)))
        self._remove_unused(names)

    def clean_inputs(self) -> None:
        """Delete images that no record names. Only for the one process that works off the queue."""
        self.inputs.keep_only(self._names("1", ()))

    def remember(self, name: str, value: str) -> None:
        """Keep a fact about the queue itself."""
        self.file.put(Write("INSERT OR REPLACE INTO queue_state VALUES (?, ?)", (name, value)))

    # -- questions ---------------------------------------------------------------------------------------------------

    def get(self, task_id: str) -> JobRecord | None:
        """The record of a task id, or None."""
        rows = self._query("SELECT * FROM jobs WHERE task_id = ?", (task_id,))
        return rows[0] if rows else None

    def recent(self, limit: int = 50, user: str | None = None) -> list[JobRecord]:
        """The newest first; of one user or of all."""
        sql = "SELECT * FROM jobs WHERE user = coalesce(?, user) ORDER BY created_at DESC LIMIT ?"
        return self._query(sql, (user, limit))

    def waiting(self) -> list[JobRecord]:
        """List what has not ended, in order: what ran when the server ended comes first. The requests of image jobs are
        left out, because thousands may wait: `get` has them."""
        columns = ", ".join(f"jobs.{name}" for name in COLUMNS)
        rows = self.file.rows(
            f"SELECT {columns}, CASE "
            "WHEN kind != ? OR typeof(request) != 'text' OR NOT json_valid(request) THEN request "
            "WHEN json_type(request) = 'object' THEN '{}' ELSE request END AS request "
            "FROM jobs WHERE status IN (?, ?) ORDER BY status = ?, position, created_at",
            (IMAGE_TYPE, JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.QUEUED),
        )
        records = {row["task_id"]: _record(row) for row in rows}
        for task_id in (task_id for task_id, record in records.items() if record is None):
            self.ended(task_id, JobStatus.FAILED, "The record of the job cannot be read.")
        return [record for record in records.values() if record is not None]

    def ended_jobs(
        self, statuses: Sequence[JobStatus] = FINAL, limit: int = 50, offset: int = 0, user: str | None = None
    ) -> list[JobRecord]:
        """Ended work, what ended last first; of one user or of all."""
        marks = ", ".join("?" * len(statuses))
        return self._query(
            f"SELECT * FROM jobs WHERE status IN ({marks}) AND user = coalesce(?, user) ORDER BY ended_at DESC "
            "LIMIT ? OFFSET ?",
            (*statuses, user, limit, offset),
        )

    def count(self, statuses: Sequence[JobStatus], user: str | None = None) -> int:
        """How many jobs of these states are recorded; of one user or of all."""
        marks = ", ".join("?" * len(statuses))
        sql = f"SELECT count(*) FROM jobs WHERE status IN ({marks}) AND user = coalesce(?, user)"
        return int(self.file.rows(sql, (*statuses, user))[0][0])

    def remembered(self, name: str) -> str | None:
        """A fact about the queue itself, see `remember`."""
        rows = self.file.rows("SELECT value FROM queue_state WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    def _input_rows(self, task_id: str, recorded: Mapping[str, Any]) -> list[Write]:
        names = sorted(names_in(recorded.get("start")))
        return [Write("INSERT OR IGNORE INTO job_inputs VALUES (?, ?)", (name, task_id)) for name in names]

    def _names(self, where: str, values: tuple[object, ...]) -> set[str]:
        """The input images of some jobs."""
        return {str(row[0]) for row in self.file.rows(f"SELECT DISTINCT name FROM job_inputs WHERE {where}", values)}

    def _remove_unused(self, names: set[str]) -> None:
        if not names or self.file.is_behind:
            return  # what could not be written yet may still name them; the next start looks
        self.inputs.remove(
            name for name in names if not self.file.rows("SELECT 1 FROM job_inputs WHERE name = ?", (name,))
        )

    def _query(self, sql: str, values: Sequence[object]) -> list[JobRecord]:
        return [record for row in self.file.rows(sql, values) if (record := _record(row)) is not None]


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA synchronous=FULL")
    check_whole(db)
    db.executescript(SCHEMA)
    add_columns(db, "jobs", ADDED_COLUMNS)
    _widen_seeds(db)
    db.executescript(LATER_INDEXES)


def _widen_seeds(db: sqlite3.Connection) -> None:
    """Make the seeds of a file of version 4 text."""
    types = {row["name"]: row["type"] for row in db.execute("PRAGMA table_info(job_images)")}
    if types.get("seed") == "INTEGER":
        db.executescript(
            f"BEGIN; ALTER TABLE job_images RENAME TO job_images_4; {IMAGES} "
            "INSERT INTO job_images SELECT * FROM job_images_4; DROP TABLE job_images_4; COMMIT;"
        )


def _refusal(error: Exception) -> InvalidValueError:
    return InvalidValueError(
        f"The record of jobs cannot keep a value of this job ({type(error).__name__}: {error}), so the job has failed. "
        "Other jobs are not affected."
    )


def _text(text: str) -> str:
    """Text as a database takes it: lone surrogates cannot be UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _ending(task_id: str, status: JobStatus, error: str | None, outcome: dict[str, Any] | None) -> tuple[Write, ...]:
    values = (status, time.time(), None if error is None else _text(error))
    return (
        Write(
            "UPDATE jobs SET status = ?, ended_at = ?, error = ?, is_pinned = 0, "
            "request = CASE WHEN ? AND kind != 'txt2img' AND json_valid(request) THEN json_remove(request, '$.start') "
            "ELSE request END, "
            f"outcome = coalesce(?, {IMAGES_SO_FAR}, outcome) WHERE task_id = ?",
            (
                *(*values, status is JobStatus.DONE),  # images of tasks stand in the record itself
                *(None if outcome is None else json.dumps(outcome), task_id, task_id),
            ),
        ),
        Write("DELETE FROM job_images WHERE task_id = ?", (task_id,)),
        Write("DELETE FROM task_notes WHERE task_id = ?", (task_id,)),
    )


def _forgetting(where: str, values: tuple[object, ...]) -> tuple[Write, ...]:
    tables = ("job_inputs", "job_images", "task_notes", "jobs")  # the last one last: the others may be chosen by it
    return tuple(Write(f"DELETE FROM {table} WHERE {where}", values) for table in tables)


def _image_row(
    task_id: str, image: GeneratedImage, path: Path | None, found: str | None, is_done: bool
) -> tuple[str, tuple[object, ...]]:
    place = None if path is None else _text(str(path))
    values = (image.role, str(image.seed), str(image.subseed), _text(image.infotext), is_done)
    return "INSERT OR REPLACE INTO job_images VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (
        *(task_id, image.key, place, found),
        *values,
    )


def _image_record(row: sqlite3.Row) -> ImageRecord | None:
    try:
        image = MadeImage(
            key=row["key"],
            path=Path(row["path"]),
            infotext=row["infotext"],
            seed=int(row["seed"]),
            subseed=int(row["subseed"]),
            role=ImageRole(row["kind"]),
        )
        return ImageRecord(image, row["fingerprint"], bool(row["is_done"]))
    except (ValueError, TypeError) as error:
        log.warning("The record of an image of the job %r cannot be read: %s", row["task_id"], error)
        return None


def _record(row: sqlite3.Row) -> JobRecord | None:
    """A row as a record; None, and a line in the log, for one that somebody has edited into nonsense."""
    try:
        request = read_json(row["request"], constant=float)
        if not isinstance(request, dict):
            raise TypeError("its request is no object")
        return JobRecord(
            task_id=row["task_id"],
            type=row["kind"],
            title=row["title"],
            status=JobStatus(row["status"]),
            request=request,
            created_at=float(row["created_at"]),
            started_at=row["started_at"],
            ended_at=row["ended_at"],
            error=row["error"],
            outcome=read_json(row["outcome"], constant=float) if row["outcome"] else None,
            standing=Standing(
                position=float(row["position"]),
                user=str(row["user"]),
                model=str(row["model"]),
                needs=tuple(map(str, read_json(row["needs"], constant=float))),
                is_pinned=bool(row["is_pinned"]),
                is_bookmarked=bool(row["is_bookmarked"]),
                attempts=int(row["attempts"]),
                is_lasting=bool(row["is_lasting"]),
            ),
        )
    except (ValueError, TypeError) as error:
        log.warning("The record of the job %r cannot be read: %s", row["task_id"], error)
        return None
