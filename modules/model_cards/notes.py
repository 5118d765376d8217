"""A user's notes about a model file: NAME.json next to it, with the keys of the reference UI.

Keys: description, notes, "activation text", "preferred weight", "negative text", "sd version"; for checkpoints "vae".
Other keys in the file are kept. What other programs fetched from Civitai and left beside the file (NAME.civitai.info,
or such facts in NAME.json) stands where the user noted nothing."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.downloads.about import of_civitai
from modules.errors import InvalidValueError
from modules.models.files.diffusers_folder import sibling_file
from modules.system.atomic_files import output_error, write_atomic
from modules.system.bounded import read_json, read_json_file
from modules.system.decoding import decode_text
from modules.system.model_folders import Near

TEXTS = ("description", "notes", "activation text", "negative text", "sd version", "vae")
WEIGHT = "preferred weight"
DESCRIPTIONS = (".txt", ".description.txt")
MAX_BYTES = 1 << 20
MAX_TEXT = 20_000
MAX_WEIGHT = 2.0

Notes = dict[str, Any]


class NoteBook:
    """Reads notes, each file once while it stays as it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[str, tuple[tuple[int, int], Any]] = {}

    def notes_of(self, near: Near) -> Notes:
        """The notes next to a file; empty where there are none, or the file holds something else.

        A description comes from NAME.txt or NAME.description.txt where the notes have none.
        """
        found = self._content(near, ".json")
        notes = {key: value for key, value in found.items() if key in TEXTS or key == WEIGHT} if found else {}
        notes = {key: _clean(key, value) for key, value in notes.items()}
        for key, value in _fetched(self._content(near, ".civitai.info") or found or {}).items():
            notes[key] = notes.get(key) or value
        if not notes.get("description"):
            notes["description"] = self._content(near, *DESCRIPTIONS) or ""
        return notes

    def _content(self, near: Near, *endings: str) -> Any:
        entry = near.find(*endings)
        if entry is None:
            return None
        try:
            stat = entry.stat()
            stamp = (stat.st_size, stat.st_mtime_ns)
            known = self._read.get(entry.path)
            if known is None or known[0] != stamp:
                known = (stamp, _read(Path(entry.path), stat.st_size))
                with self._lock:
                    self._read[entry.path] = known
        except OSError:  # gone since the folder was listed
            return None
        return known[1]


def _fetched(found: Notes) -> Notes:
    """Notes from facts in the words of Civitai's API; empty where there are none."""
    if not ({"trainedWords", "baseModel"} & set(found)):
        return {}
    about = of_civitai(found)
    notes = {"activation text": ", ".join(about.triggers), "sd version": about.base, "description": about.description}
    return {key: value[:MAX_TEXT] for key, value in notes.items() if value}


def write_notes(path: Path, changes: Mapping[str, Any], keeps: bool = False) -> Path:
    """Change the notes next to a model file: null and empty values remove their key, other keys stay as they are. With
    `keeps` what is noted already stays as well.

    The file is replaced in one step. Raises `InvalidValueError` for unknown keys and values of a wrong type, and for
    a NAME.json that holds something else; `OutputError` if it cannot be written.
    """
    checked = {key: _checked(key, value) for key, value in changes.items()}
    file = sibling_file(path, ".json")
    kept = _kept(file)
    notes = {**kept, **{key: value for key, value in checked.items() if not (keeps and kept.get(key))}}
    notes = {key: value for key, value in notes.items() if key not in checked or value not in ("", None, 0.0)}
    try:
        write_atomic(file, json.dumps(notes, indent=4, ensure_ascii=False).encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise output_error(f"The notes {file.name}", file.parent, error) from error
    return file


def _kept(file: Path) -> Notes:
    """Read what the file holds already. A link is not followed, it will be replaced by a file."""
    if file.is_symlink() or not file.exists():
        return {}
    try:
        found = read_json_file(file)
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"{file.name} cannot be read as JSON ({error}). Nothing was changed: repair or remove that file."
        ) from error
    if not isinstance(found, dict):
        raise InvalidValueError(f"{file.name} holds no notes, but something else. Nothing was changed: rename it.")
    return found


def _checked(key: str, value: Any) -> Any:
    if key == WEIGHT:
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_WEIGHT:
            raise InvalidValueError(f"{key!r} is {value!r}; it must be a number from 0 (the default) to {MAX_WEIGHT}.")
        return float(value)
    if key not in TEXTS:
        raise InvalidValueError(f"There is no note {key!r}; known are {', '.join((*TEXTS, WEIGHT))}.")
    if value is not None and (not isinstance(value, str) or len(value) > MAX_TEXT):
        raise InvalidValueError(f"{key!r} must be a text of at most {MAX_TEXT} characters.")
    return value


def _clean(key: str, value: Any) -> Any:
    """A value as it should be, whatever another program wrote."""
    if key == WEIGHT:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
        return max(-MAX_WEIGHT, min(float(value), MAX_WEIGHT)) if is_number else 0.0
    return value if isinstance(value, str) else ""


def _read(path: Path, size: int) -> Any:
    """A dict from .json, a text from others; None for what is neither."""
    if size > MAX_BYTES:
        return None
    data = path.read_bytes()
    if path.suffix not in (".json", ".info"):
        return decode_text(data).strip()[:MAX_TEXT]
    try:
        found = read_json(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
