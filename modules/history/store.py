"""Every finished image with its full record, found again by words and values. SQLite with FTS5, in WAL mode.

An entry's id is its time in microseconds, so that the newest come first in whatever order an index gives. The values
of images (`steps: 20`) stand once in a table; the words of an image in the index hold a token for each, so that all
of a search is one lookup in one index.
"""

import json
import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from modules.errors import BusyError, InvalidValueError, OutputError, UnknownNameError
from modules.history.boards import BOARDS_SCHEMA, Boards, put_on_board
from modules.history.facets import number_of, searchable
from modules.history.query import Query, Value, Words, parse_query
from modules.processing.request.result import GeneratedImage
from modules.system.atomic_files import fingerprint, move_together, output_error
from modules.system.bounded import read_json
from modules.system.file_names import without_controls
from modules.system.sqlite_files import Database, DatabaseWords, add_columns, check_whole

log = logging.getLogger(__name__)

VERSION = 2
SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL UNIQUE,
    fingerprint TEXT NOT NULL,
    task_id TEXT NOT NULL DEFAULT '',
    user TEXT NOT NULL DEFAULT '',
    role TEXT NOT NULL DEFAULT 'sample',
    width INTEGER NOT NULL,
    height INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    changed_at REAL NOT NULL,
    infotext TEXT NOT NULL,
    is_starred INTEGER NOT NULL DEFAULT 0,
    tags TEXT NOT NULL DEFAULT '[]',
    is_missing INTEGER NOT NULL DEFAULT 0,
    trashed_from TEXT
);
CREATE INDEX IF NOT EXISTS entries_by_fingerprint ON entries (fingerprint);
CREATE INDEX IF NOT EXISTS entries_by_task ON entries (task_id);
CREATE INDEX IF NOT EXISTS starred_entries ON entries (id) WHERE is_starred;
CREATE TABLE IF NOT EXISTS facets (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, text TEXT NOT NULL COLLATE NOCASE, number REAL, UNIQUE (key, text)
);
CREATE INDEX IF NOT EXISTS facet_numbers ON facets (key, number);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(
    prompt, negative, name, facets, tokenize = 'unicode61 remove_diacritics 2'
);
CREATE TABLE IF NOT EXISTS imports (
    folder TEXT PRIMARY KEY, state TEXT NOT NULL, counts TEXT NOT NULL DEFAULT '{}', error TEXT
) WITHOUT ROWID;
"""
ADDED_COLUMNS = {"board": "INTEGER"}  # of entries, since version 2
NO_BOARD = 0  # in a search: images on no board
ALL, NONE = "fall", "fnone"  # the token that every image has, and one that no image has
MAX_FACETS = 2000  # of one term of a search, as tokens
PAGE = 60
MAX_PAGE = 500
MAX_TAGS, MAX_TAG_CHARS = 32, 60
LOCK_WAIT_S = 5.0
WORDS = DatabaseWords(
    name="The history",
    damaged="images are not affected. Import the folder of outputs in the History tab to have them found again.",
    locked=". Close that, or try again.",
    unusable="cannot be used: {reason}. Free some space, or allow writing there.",
)
MAX_LATE = 10_000  # images that wait because the file takes nothing
MAX_ID = 2**53 - 1  # what a browser counts to


@dataclass(frozen=True)
class HistoryEntry:
    """An image. `created_at` is in seconds since 1970; `trashed_from` where its file was before it was deleted; `board`
    the id of the board that it lies on."""

    id: int
    path: Path
    fingerprint: str
    task_id: str
    user: str
    role: str
    width: int
    height: int
    size_bytes: int
    changed_at: float
    infotext: str
    is_starred: bool = False
    tags: tuple[str, ...] = ()
    is_missing: bool = False
    trashed_from: Path | None = None
    board: int | None = None

    @property
    def created_at(self) -> float:
        return self.id / 1e6


@dataclass(frozen=True)
class ImageFile:
    """Facts of a file before it is in the history."""

    path: Path
    fingerprint: str
    width: int
    height: int
    size_bytes: int
    changed_at: float  # of the file, seconds since 1970
    infotext: str
    created_at: float
    task_id: str = ""
    user: str = ""
    role: str = "sample"


class Imports:
    """How far the imports of folders are, for `modules.history.importing`."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def note(self, folder: Path, state: str, counts: dict[str, int], error: str | None = None) -> None:
        """Write down how far the import of a folder is."""
        with self._file.using(changes=True):
            self._file.db.execute(
                "INSERT OR REPLACE INTO imports VALUES (?, ?, ?, ?)",
                (_text(str(folder)), state, json.dumps(counts), None if error is None else _text(error)),
            )

    def all(self) -> list[dict[str, Any]]:
        """List all imports: folder, state, counts, error."""
        with self._file.using():
            rows = self._file.db.execute("SELECT * FROM imports ORDER BY folder").fetchall()
        return [{**dict(row), "counts": read_json(row["counts"], constant=float)} for row in rows]


class History:
    """One connection behind a lock. `path` None keeps it in memory. `trash` is the folder that deleted files go to."""

    def __init__(self, path: Path | None, trash: Path) -> None:
        """Open or begin the file; a damaged one is kept aside, and `notices` says so. Raises `OutputError` or
        `BusyError` for a file that is fine but cannot be used, and for one of a newer version."""
        self.trash = trash
        self._facets: dict[tuple[str, str], int] = {}
        self._late: deque[ImageFile] = deque(maxlen=MAX_LATE)  # changed by one thread at a time that has the lock
        self._coming: deque[ImageFile] = deque(maxlen=MAX_LATE)  # filled by any thread, without waiting
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self.file = Database(path, VERSION, self._prepare, WORDS, LOCK_WAIT_S)
        self.boards = Boards(self.file)
        self.imports = Imports(self.file)

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices of what was kept aside."""
        return self.file.notices

    def close(self) -> None:
        """Close the file; the history cannot be used afterwards."""
        with self.file.lock:
            self.take_late(LOCK_WAIT_S)
            self.file.db.close()

    # -- images come -------------------------------------------------------------------------------------------------

    def finished(self, task_id: str, user: str, image: GeneratedImage) -> None:
        """Take in an image of a job. One without a file has no place here. Never raises and never waits for long, see
        `ImageListener`: while the file takes nothing, images wait for `take_late`, or for the end."""
        if image.path is None:
            return
        try:
            facts = image.path.stat()
            file = ImageFile(
                path=image.path,
                fingerprint=fingerprint(image.path),
                width=image.image.width,
                height=image.image.height,
                size_bytes=facts.st_size,
                changed_at=facts.st_mtime,
                infotext=image.infotext,
                created_at=time.time(),
                task_id=task_id,
                user=user,
                role=image.role.value,
            )
        except OSError as error:
            log.warning("%s is not in the history: %s", image.path.name, error)
            return
        self._coming.append(file)
        self.take_late()

    @property
    def is_behind(self) -> bool:
        """Whether images wait for the file to take them."""
        return bool(self._late or self._coming)

    def take_late(self, wait_s: float = 0.05) -> None:
        """Write the images that wait; one that another thread or program holds is waited for so long. Never raises."""
        if not self.is_behind or not self.file.lock.acquire(timeout=wait_s):
            return
        try:
            while self._coming:
                self._late.append(self._coming.popleft())
            self.file.db.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
            try:
                self.add(tuple(self._late))
            except (OutputError, BusyError) as error:
                log.warning("%d images are not in the history yet: %s", len(self._late), error)
            except Exception:
                self._take_each()
            else:
                self._late.clear()
            finally:
                self.file.db.execute(f"PRAGMA busy_timeout = {int(LOCK_WAIT_S * 1000)}")
        finally:
            self.file.lock.release()

    def _take_each(self) -> None:
        """Write the images that wait one by one: what cannot be taken is left out, and does not hold up the others."""
        while self._late:
            try:
                self.add((self._late[0],))
            except (OutputError, BusyError) as error:
                log.warning("%d images are not in the history yet: %s", len(self._late), error)
                return
            except Exception:
                log.exception("%s is left out of the history", self._late[0].path)
            self._late.popleft()

    def add(self, files: Sequence[ImageFile]) -> int:
        """Take in files in one transaction; those whose path is known already replace what was known of it. Returns how
        many were new. Raises `OutputError`, `BusyError`."""
        new = 0
        with self.file.using(changes=True) as db:
            for file in files:
                known = db.execute("SELECT id FROM entries WHERE path = ?", (_text(str(file.path)),)).fetchone()
                entry_id = int(known[0]) if known else self._free_id(file.created_at)
                new += known is None
                values = (
                    *(_text(str(file.path)), file.fingerprint, _text(file.task_id), _text(file.user), file.role),
                    *(file.width, file.height, file.size_bytes, file.changed_at, _text(file.infotext)),
                )
                if known:
                    self.file.db.execute(
                        "UPDATE entries SET path = ?, fingerprint = ?, task_id = ?, user = ?, role = ?, width = ?, "
                        "height = ?, size_bytes = ?, changed_at = ?, infotext = ?, is_missing = 0 WHERE id = ?",
                        (*values, entry_id),
                    )
                else:
                    self.file.db.execute(
                        "INSERT INTO entries (path, fingerprint, task_id, user, role, width, height, size_bytes, "
                        "changed_at, infotext, id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (*values, entry_id),
                    )
                self._index(self._one(entry_id))
        return new

    def _free_id(self, created_at: float) -> int:
        wanted = max(1, min(int(created_at * 1e6), MAX_ID))
        while self.file.db.execute("SELECT 1 FROM entries WHERE id = ?", (wanted,)).fetchone():
            wanted += 1
        return wanted

    def _index(self, entry: HistoryEntry) -> None:
        self.file.db.execute("DELETE FROM words WHERE rowid = ?", (entry.id,))
        if entry.trashed_from is not None:
            return
        found = searchable(entry.infotext, (entry.width, entry.height), entry.user, entry.tags)
        tokens = " ".join((ALL, *(f"f{self._facet(*value)}" for value in sorted(found.values))))
        self.file.db.execute(
            "INSERT INTO words (rowid, prompt, negative, name, facets) VALUES (?, ?, ?, ?, ?)",
            (entry.id, found.prompt, found.negative_prompt, entry.path.name, tokens),
        )

    def _facet(self, key: str, text: str) -> int:
        text = _text(text)
        found = self._facets.get((key, text))
        if found is None:
            self.file.db.execute(
                "INSERT OR IGNORE INTO facets (key, text, number) VALUES (?, ?, ?)", (key, text, number_of(text))
            )
            (found,) = self.file.db.execute("SELECT id FROM facets WHERE key = ? AND text = ?", (key, text)).fetchone()
            if len(self._facets) > 50_000:
                self._facets.clear()
            self._facets[key, text] = found
        return int(found)

    # -- questions ---------------------------------------------------------------------------------------------------

    def search(
        self,
        text: str = "",
        before: int | None = None,
        limit: int = PAGE,
        user: str | None = None,
        board: int | None = None,
    ) -> list[HistoryEntry]:
        """The newest that a search finds, older than the entry `before`; of one user or of all, of one board, of none
        (`NO_BOARD`) or of all. Raises `InvalidValueError` for what is no search, see `modules.history.query`."""
        query = parse_query(text)
        with self.file.using():
            sql, values = self._sql(query, before, user, board)
            rows = self.file.db.execute(f"{sql} LIMIT ?", (*values, max(1, min(limit, MAX_PAGE)))).fetchall()
        return [_entry(row) for row in rows]

    def count(self, text: str = "", user: str | None = None, board: int | None = None) -> int:
        """How many a search finds."""
        with self.file.using():
            sql, values = self._sql(parse_query(text), None, user, board)
            inner = sql.replace("SELECT entries.*", "SELECT 1", 1).partition(" ORDER BY ")[0]
            return int(self.file.db.execute(f"SELECT count(*) FROM ({inner})", values).fetchone()[0])

    def entry(self, entry_id: int) -> HistoryEntry:
        """One entry. Raises `UnknownNameError`."""
        with self.file.using():
            return self._one(entry_id)

    def of_task(self, task_id: str) -> list[HistoryEntry]:
        """The images of a job, in the order in which they were made."""
        with self.file.using():
            rows = self.file.db.execute("SELECT * FROM entries WHERE task_id = ? ORDER BY id", (task_id,)).fetchall()
        return [_entry(row) for row in rows]

    def known(self, path: Path) -> tuple[int, float] | None:
        """Size and time of change that a path had when it was taken in; None for a new one."""
        with self.file.using():
            row = self.file.db.execute(
                "SELECT size_bytes, changed_at FROM entries WHERE path = ?", (_text(str(path)),)
            ).fetchone()
        return (int(row[0]), float(row[1])) if row else None

    def same_contents(self, found: str) -> list[HistoryEntry]:
        """Entries whose files have this fingerprint."""
        with self.file.using():
            rows = self.file.db.execute("SELECT * FROM entries WHERE fingerprint = ?", (found,)).fetchall()
        return [_entry(row) for row in rows]

    def below(self, folder: Path) -> Iterator[HistoryEntry]:
        """All entries whose files lie in a folder or below, the newest first, without those that come meanwhile."""
        prefix = _text(str(folder)) + os.sep
        before = MAX_ID + 1
        while True:
            with self.file.using():
                rows = self.file.db.execute(
                    "SELECT * FROM entries WHERE id < ? AND substr(path, 1, ?) = ? ORDER BY id DESC LIMIT 200",
                    (before, len(prefix), prefix),
                ).fetchall()
            if not rows:
                return
            yield from map(_entry, rows)
            before = rows[-1]["id"]

    def values_of(self, key: str, limit: int = 200, user: str | None = None) -> list[str]:
        """The values that images have for a key, for lists to choose from; of one user's images or of all."""
        with self.file.using():
            rows = self.file.db.execute("SELECT id, text FROM facets WHERE key = ? ORDER BY text LIMIT ?", (key, limit))
            found = [(int(row[0]), str(row[1])) for row in rows]
            if user is None:
                return [text for _, text in found]
            own = self._tokens(Value("user", user, is_whole=True))
            any_image = "SELECT 1 FROM words WHERE words MATCH ? LIMIT 1"
            return [
                text
                for number, text in found
                if self.file.db.execute(any_image, (f"{own} AND facets : f{number}",)).fetchone()
            ]

    def last_uses(self, key: str, limit: int = 2000) -> dict[str, float]:
        """When the newest image with each value of a key was made, in seconds since 1970; values in small letters."""
        found: dict[str, float] = {}
        with self.file.using():
            rows = self.file.db.execute("SELECT id, text FROM facets WHERE key = ? LIMIT ?", (key, limit)).fetchall()
            for number, text in rows:
                newest = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT 1"
                row = self.file.db.execute(newest, (f"facets : f{number}",)).fetchone()
                if row is not None:
                    found[str(text).lower()] = row[0] / 1e6
        return found

    def users(self) -> list[str]:
        """Whose images there are; "" for those that nobody's job has made, as imported ones."""
        with self.file.using():
            return [str(row[0]) for row in self.file.db.execute("SELECT DISTINCT user FROM entries ORDER BY user")]

    # -- changes -----------------------------------------------------------------------------------------------------

    def star(self, entry_id: int, is_starred: bool) -> HistoryEntry:
        """Mark an image, or take the mark away. Raises `UnknownNameError`."""
        return self._changed(replace(self.entry(entry_id), is_starred=is_starred))

    def tag(self, entry_id: int, tags: Iterable[str]) -> HistoryEntry:
        """Give an image these tags instead of those it has. Raises `UnknownNameError`, `InvalidValueError`."""
        words = (without_controls(" ".join(tag.split())) for tag in tags)
        plain = tuple(dict.fromkeys(word for word in words if word))
        if len(plain) > MAX_TAGS or any(len(tag) > MAX_TAG_CHARS for tag in plain):
            raise InvalidValueError(f"An image has at most {MAX_TAGS} tags of {MAX_TAG_CHARS} characters each.")
        return self._changed(replace(self.entry(entry_id), tags=plain))

    def delete(self, entry_id: int) -> HistoryEntry:
        """Move an image's file to the trash, and the image out of the history; `restore` brings both back. Raises
        `UnknownNameError`, `OutputError`."""
        entry = self.entry(entry_id)
        if entry.trashed_from is not None:
            return entry
        path = _moved(entry.path, self._trash_of_today) if entry.path.exists() else entry.path
        return self._changed(replace(entry, path=path, trashed_from=entry.path))

    def delete_file(self, path: Path) -> Path | None:
        """Move an image's file to the trash, as `delete` where the history knows it. Its new path; None for a file
        that somebody has taken away before. Raises `OutputError`."""
        if not path.is_file():
            return None
        with self.file.using():
            row = self.file.db.execute("SELECT id FROM entries WHERE path = ?", (_text(str(path)),)).fetchone()
        return _moved(path, self._trash_of_today) if row is None else self.delete(int(row[0])).path

    @property
    def _trash_of_today(self) -> Path:
        return self.trash / datetime.now().astimezone().strftime("%Y-%m-%d")

    def restore(self, entry_id: int) -> HistoryEntry:
        """Bring a deleted image back to where it was. Raises `UnknownNameError`, `OutputError`."""
        entry = self.entry(entry_id)
        if entry.trashed_from is None:
            return entry
        path = _moved(entry.path, entry.trashed_from.parent, entry.trashed_from.name)
        return self._changed(replace(entry, path=path, trashed_from=None))

    def moved(self, entry_id: int, path: Path) -> None:
        """The file of an image was found elsewhere."""
        self._changed(replace(self.entry(entry_id), path=path, is_missing=False))

    def file_moved(self, before: Path, after: Path) -> bool:
        """A file was moved by this program; whether it is one of the history, or waits to be one."""
        with self.file.lock:
            while self._coming:
                self._late.append(self._coming.popleft())
            for index, file in enumerate(self._late):
                if file.path == before:
                    self._late[index] = replace(file, path=after)
                    return True
        with self.file.using():
            row = self.file.db.execute("SELECT id FROM entries WHERE path = ?", (_text(str(before)),)).fetchone()
        if row is not None:
            self.moved(int(row[0]), after)
        return row is not None

    def missing(self, entry_id: int, is_missing: bool = True) -> None:
        """The file of an image is not where it was, or is again."""
        with self.file.using(changes=True):
            self.file.db.execute("UPDATE entries SET is_missing = ? WHERE id = ?", (is_missing, entry_id))

    def put(self, entry_ids: Sequence[int], board_id: int | None) -> list[HistoryEntry]:
        """Move images to a board, or with None off their boards, all or none. Raises `UnknownNameError`."""
        with self.file.using(changes=True):
            put_on_board(self.file.db, entry_ids, board_id)
            return [self._one(entry_id) for entry_id in entry_ids]

    # -- the file ----------------------------------------------------------------------------------------------------

    def _prepare(self, db: sqlite3.Connection) -> None:
        self._facets.clear()  # their ids are those of a file
        db.execute("PRAGMA synchronous=NORMAL")  # the queue's record has what a loss of power takes
        db.execute("PRAGMA cache_size=-32000")
        db.executescript(SCHEMA)
        check_whole(db)
        add_columns(db, "entries", ADDED_COLUMNS)
        db.executescript(BOARDS_SCHEMA)

    def _one(self, entry_id: int) -> HistoryEntry:
        row = self.file.db.execute(
            "SELECT * FROM entries WHERE id = ?", (max(-(2**62), min(entry_id, 2**62)),)
        ).fetchone()
        if row is None:
            raise UnknownNameError(f"The history has no image {entry_id}; it may have been deleted.")
        return _entry(row)

    def _changed(self, entry: HistoryEntry) -> HistoryEntry:
        place = None if entry.trashed_from is None else _text(str(entry.trashed_from))
        with self.file.using(changes=True):
            self.file.db.execute("DELETE FROM entries WHERE path = ? AND id != ?", (_text(str(entry.path)), entry.id))
            self.file.db.execute(
                "UPDATE entries SET path = ?, is_starred = ?, tags = ?, is_missing = ?, trashed_from = ? WHERE id = ?",
                (_text(str(entry.path)), entry.is_starred, json.dumps(entry.tags), entry.is_missing, place, entry.id),
            )
            self._index(entry)
        return entry

    # -- a search as SQL ---------------------------------------------------------------------------------------------

    def _sql(
        self, query: Query, before: int | None, user: str | None, board: int | None
    ) -> tuple[str, tuple[object, ...]]:
        where, values = [], list[object]()
        if "trashed" in query.states:
            where.append("entries.trashed_from IS NOT NULL")
            source, key = "entries", "entries.id"
            if user is not None:
                where.append("entries.user = ?")
                values.append(user)
        else:
            match = self._match(query, user)
            if match == ALL:
                where.append("entries.trashed_from IS NULL")
                source, key = "entries", "entries.id"
            else:
                source, key = "words JOIN entries ON entries.id = words.rowid", "words.rowid"
                where.append("words MATCH ?")
                values.append(match)
        low = None if query.since is None else int(query.since * 1e6)
        high = None if query.until is None else int(query.until * 1e6)
        if before is not None:
            high = before if high is None else min(high, before)
        for bound, sign in ((low, ">="), (high, "<")):
            if bound is not None:
                where.append(f"{key} {sign} ?")
                values.append(max(-(2**62), min(bound, 2**62)))
        for state in ("starred", "missing"):
            if state in query.states:
                where.append(f"entries.is_{state}")
            if state in query.without:
                where.append(f"NOT entries.is_{state}")
        if board is not None:
            where.append("entries.board IS NULL" if board == NO_BOARD else "entries.board = ?")
            values += [] if board == NO_BOARD else [max(-(2**62), min(board, 2**62))]
        for wanted in query.boards:
            named = "entries.board IN (SELECT id FROM boards WHERE name LIKE ? ESCAPE '\\')"
            where.append(f"NOT ifnull({named}, 0)" if wanted.is_negated else named)
            values.append(_pattern(wanted.text) if wanted.is_whole else f"%{_pattern(wanted.text)}%")
        return f"SELECT entries.* FROM {source} WHERE {' AND '.join(where)} ORDER BY {key} DESC", tuple(values)

    def _match(self, query: Query, user: str | None) -> str:
        """The expression for FTS5."""
        wanted = [_words(item) for item in query.words if not item.is_negated]
        refused = [_words(item) for item in query.words if item.is_negated]
        for item in query.values:
            (refused if item.is_negated else wanted).append(self._tokens(item))
        if user is not None:
            wanted.append(self._tokens(Value("user", user, is_whole=True)))
        wanted = [text for text in wanted if text]
        positive = " AND ".join(wanted) or (f"facets : {ALL}" if refused else ALL)
        refused = [text for text in refused if text]
        return f"({positive}) NOT ({' OR '.join(refused)})" if refused else positive

    def _tokens(self, value: Value) -> str:
        """The tokens of the values that are meant."""
        if value.is_number:
            signs = (">", "<") if value.is_open else (">=", "<=")
            bounds = [
                (sign, bound) for sign, bound in zip(signs, (value.low, value.high), strict=True) if bound is not None
            ]
            condition = " AND ".join(f"number {sign} ?" for sign, _ in bounds)
            values: tuple[object, ...] = tuple(bound for _, bound in bounds)
        elif value.is_whole:
            condition, values = "text = ?", (value.text,)
        else:
            condition, values = "text LIKE ? ESCAPE '\\'", (f"%{_pattern(value.text)}%",)
        sql = f"SELECT id FROM facets WHERE key = ? AND {condition} LIMIT ?"
        found = self.file.db.execute(sql, (value.key, *values, MAX_FACETS + 1)).fetchall()
        if len(found) > MAX_FACETS:
            raise InvalidValueError(f"More than {MAX_FACETS} values of '{value.key}' are meant; narrow the search.")
        return f"facets : ({' OR '.join(f'f{row[0]}' for row in found) or NONE})"


def _words(item: Words) -> str:
    """A word or phrase in a column; what has no letter or digit means nothing."""
    if not any(letter.isalnum() for letter in item.text):
        return ""
    quoted = item.text.rstrip("*").replace('"', " ")
    star = "*" if item.text.endswith("*") else ""
    return f'{item.column} : "{quoted}"{star}'


def _pattern(text: str) -> str:
    """A text for SQL's LIKE with a backslash as its escape; a star stands for anything."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")


def _entry(row: sqlite3.Row) -> HistoryEntry:
    try:
        tags = tuple(map(str, read_json(row["tags"], constant=float)))
    except (ValueError, TypeError):
        tags = ()  # edited by hand
    return HistoryEntry(
        id=int(row["id"]),
        path=Path(row["path"]),
        fingerprint=str(row["fingerprint"]),
        task_id=str(row["task_id"]),
        user=str(row["user"]),
        role=str(row["role"]),
        width=int(row["width"]),
        height=int(row["height"]),
        size_bytes=int(row["size_bytes"]),
        changed_at=float(row["changed_at"]),
        infotext=str(row["infotext"]),
        is_starred=bool(row["is_starred"]),
        tags=tags,
        is_missing=bool(row["is_missing"]),
        trashed_from=Path(row["trashed_from"]) if row["trashed_from"] else None,
        board=None if row["board"] is None else int(row["board"]),
    )


def _moved(path: Path, folder: Path, name: str | None = None) -> Path:
    """Move a file and the text file next to it into a folder, under a name that is free. Raises `OutputError`."""
    target = folder / (name or path.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = 0
        while target.exists() or target.with_suffix(".txt").exists():
            number += 1
            target = folder / f"{Path(name or path.name).stem}-{number}{path.suffix}"
        pairs = ((path, target), (path.with_suffix(".txt"), target.with_suffix(".txt")))
        move_together([(before, after) for before, after in pairs if before is path or before.is_file()])
    except OSError as error:
        raise output_error(f"{path.name}", folder, error) from error
    return target


def _text(text: str) -> str:
    """Text as a database takes it: lone surrogates cannot be UTF-8."""
    return text.encode("utf-8", "replace").decode()
