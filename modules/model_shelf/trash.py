"""Deleted model files: each in a folder of its own with what lay beside it and a note where it was, until it is put
back or deleted for good."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from modules.errors import InvalidValueError, UnknownNameError
from modules.system.atomic_files import move_together, output_error, write_atomic
from modules.system.bounded import read_json_file

NOTE = "trashed.json"
BESIDE = (
    *(".json", ".civitai.info", ".txt", ".description.txt", ".yaml"),
    *(f"{infix}{suffix}" for infix in (".preview", "") for suffix in (".png", ".jpg", ".jpeg", ".webp", ".gif")),
)
"""What may lie beside a model file under its name."""


@dataclass(frozen=True)
class Trashed:
    """A file in the trash. `path`: where it was; `at`: seconds since 1970."""

    id: str
    path: Path
    kind: str
    size_bytes: int
    at: float


def beside(path: Path) -> list[Path]:
    """The files that belong to a model file: notes, previews, its YAML."""
    return [found for ending in BESIDE if (found := path.with_name(path.stem + ending)).is_file()]


class Trash:
    """The trash of models in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, path: Path, kind: str) -> Trashed:
        """Move a file here. Raises `OutputError`."""
        now = time.time()
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{secrets.token_hex(3)}"
        trashed = Trashed(name, path, kind, path.stat().st_size, now)
        place = self._folder / name
        try:
            write_atomic(place / NOTE, json.dumps({**asdict(trashed), "path": str(path)}).encode())
            move_together([(file, place / file.name) for file in (*beside(path), path)])
        except OSError as error:
            raise output_error(path.name, place, error) from error
        return trashed

    def entries(self) -> tuple[Trashed, ...]:
        """List what is here, the newest first."""
        found = (self._entry(note.parent) for note in self._folder.glob(f"*/{NOTE}"))
        return tuple(sorted((one for one in found if one is not None), key=lambda one: -one.at))

    def restore(self, trash_id: str) -> Path:
        """Put a file back where it was. Raises `UnknownNameError`, and `InvalidValueError` where another one is."""
        entry, place = self._found(trash_id)
        if os.path.lexists(entry.path):
            raise InvalidValueError(f"{entry.path.name} is there again: move that one away first.")
        try:
            entry.path.parent.mkdir(parents=True, exist_ok=True)
            pairs = [(file, entry.path.with_name(file.name)) for file in place.iterdir() if file.name != NOTE]
            move_together([(file, target) for file, target in pairs if not os.path.lexists(target)])
        except OSError as error:
            raise output_error(entry.path.name, entry.path.parent, error) from error
        shutil.rmtree(place)
        return entry.path

    def forget(self, trash_id: str) -> Trashed:
        """Delete a file for good. Raises `UnknownNameError`, `OutputError`."""
        entry, place = self._found(trash_id)
        try:
            shutil.rmtree(place)
        except OSError as error:
            raise output_error(entry.path.name, place, error) from error
        return entry

    def _found(self, trash_id: str) -> tuple[Trashed, Path]:
        entry = next((one for one in self.entries() if one.id == trash_id), None)
        if entry is None:
            raise UnknownNameError(f"There is nothing {trash_id[:80]!r} in the trash of models.")
        return entry, self._folder / entry.id

    def _entry(self, place: Path) -> Trashed | None:
        try:
            found = read_json_file(place / NOTE)
            entry = Trashed(**{**found, "path": Path(found["path"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None  # no note of ours: left alone
        return entry if entry.id == place.name and (place / entry.path.name).is_file() else None
