"""Boards: folders of images that a user makes. An image lies on one board at most, and its file stays where it is."""

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

from modules.errors import InvalidValueError, UnknownNameError
from modules.system.file_names import without_controls
from modules.system.sqlite_files import Database

BOARDS_SCHEMA = """
CREATE TABLE IF NOT EXISTS boards (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL COLLATE NOCASE,
    user TEXT NOT NULL DEFAULT '',
    created_at REAL NOT NULL,
    UNIQUE (user, name)
);
CREATE INDEX IF NOT EXISTS entries_by_board ON entries (board, id) WHERE board IS NOT NULL;
"""
"""For a file whose table `entries` has the column `board`, null for images on no board."""

MAX_BOARDS = 500  # of one user
MAX_NAME_CHARS = 60
_ALL = """
SELECT boards.*, count(entries.id) AS images, max(entries.id) AS newest
FROM boards LEFT JOIN entries ON entries.board = boards.id AND entries.trashed_from IS NULL
"""


@dataclass(frozen=True)
class Board:
    """`user`: whose it is. `images` counts those that are not in the trash; `newest` is the id of one of them."""

    id: int
    name: str
    user: str
    images: int = 0
    newest: int | None = None


class Boards:
    """The boards of a history's file."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def all(self, user: str | None = None) -> list[Board]:
        """The boards of one user or of all, by name."""
        with self._file.using() as db:
            return _boards(db, user)

    def get(self, board_id: int) -> Board:
        """One board. Raises `UnknownNameError`."""
        with self._file.using() as db:
            return _one(db, board_id)

    def create(self, name: str, user: str = "") -> Board:
        """An empty board. Raises `InvalidValueError` for a name that is empty, long or taken, and for too many."""
        with self._file.using(changes=True) as db:
            if len(_boards(db, user)) >= MAX_BOARDS:
                raise InvalidValueError(f"There are {MAX_BOARDS} boards, and no more are kept; delete one first.")
            values = (_checked(db, name, user), user, time.time())
            made = db.execute("INSERT INTO boards (name, user, created_at) VALUES (?, ?, ?)", values)
            return _one(db, int(made.lastrowid or 0))

    def rename(self, board_id: int, name: str) -> Board:
        """Give a board another name. Raises `InvalidValueError` as `create` does, `UnknownNameError`."""
        with self._file.using(changes=True) as db:
            board = _one(db, board_id)
            db.execute("UPDATE boards SET name = ? WHERE id = ?", (_checked(db, name, board.user, board_id), board_id))
            return _one(db, board_id)

    def remove(self, board_id: int) -> None:
        """Delete a board; its images stay in the history. Raises `UnknownNameError`."""
        with self._file.using(changes=True) as db:
            _one(db, board_id)
            db.execute("UPDATE entries SET board = NULL WHERE board = ?", (board_id,))
            db.execute("DELETE FROM boards WHERE id = ?", (board_id,))


def put_on_board(db: sqlite3.Connection, entry_ids: Sequence[int], board_id: int | None) -> None:
    """Move images to a board, or with None off their boards. Raises `UnknownNameError` for the board."""
    if board_id is not None:
        _one(db, board_id)
    db.executemany("UPDATE entries SET board = ? WHERE id = ?", [(board_id, entry_id) for entry_id in entry_ids])


def _boards(db: sqlite3.Connection, user: str | None) -> list[Board]:
    where, values = ("", ()) if user is None else ("WHERE boards.user = ?", (user,))
    return [_board(row) for row in db.execute(f"{_ALL} {where} GROUP BY boards.id ORDER BY boards.name", values)]


def _one(db: sqlite3.Connection, board_id: int) -> Board:
    bounded = max(-(2**62), min(board_id, 2**62))
    row = db.execute(f"{_ALL} WHERE boards.id = ? GROUP BY boards.id", (bounded,)).fetchone()
    if row is None:
        raise UnknownNameError(f"There is no board {board_id}; it may have been deleted.")
    return _board(row)


def _checked(db: sqlite3.Connection, name: str, user: str, own: int | None = None) -> str:
    plain = without_controls(" ".join(name.split())).encode("utf-8", "replace").decode()
    if not plain or len(plain) > MAX_NAME_CHARS:
        raise InvalidValueError(f"The name of a board has 1 to {MAX_NAME_CHARS} characters; this one has {len(plain)}.")
    taken = db.execute("SELECT id FROM boards WHERE user = ? AND name = ?", (user, plain)).fetchone()
    if taken is not None and taken[0] != own:
        raise InvalidValueError(f"There is a board '{plain}' already; choose another name.")
    return plain


def _board(row: sqlite3.Row) -> Board:
    newest = None if row["newest"] is None else int(row["newest"])
    return Board(int(row["id"]), str(row["name"]), str(row["user"]), int(row["images"]), newest)
