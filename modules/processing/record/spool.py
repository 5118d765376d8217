"""Images that could not be saved where they belong: kept in another folder or in memory, and written when it works.

A kept image is a PNG with its infotext and a JSON file that says where it belongs, so that a restart loses neither.
Where no folder takes it, it stays in memory; `on_pressure` is called when that becomes much.
"""

import hashlib
import json
import logging
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from PIL import Image

from modules.errors import OutputError
from modules.images.encode import encode_image
from modules.images.naming import NameContext
from modules.images.saving import OnPath, check_folder, expected_path, save_image
from modules.processing.record.private_folder import is_own_file, make_private, why_not_private
from modules.settings.values import Settings
from modules.system.atomic_files import write_atomic
from modules.system.bounded import read_json_file
from modules.system.threads import start_loop

log = logging.getLogger(__name__)

RETRY_S = 10.0
MAX_IN_MEMORY = 16
TIMES = ("now", "job_timestamp")


@dataclass(frozen=True)
class Unsaved:
    """The arguments with which `save_image` tries again."""

    folder: Path
    settings: Settings
    context: NameContext
    infotext: str | None
    is_grid: bool
    suffix: str
    items: Mapping[str, str]
    task_id: str = ""  # of the job that made it

    def save(self, image: Image.Image, on_path: OnPath = lambda path, fingerprint: None) -> Path:
        """Write it where it belongs. Returns and raises what `save_image` does."""
        return save_image(
            image,
            self.folder,
            self.settings,
            self.context,
            self.infotext,
            is_grid=self.is_grid,
            suffix=self.suffix,
            items=self.items,
            on_path=on_path,
        )

    def expected_path(self, image: Image.Image) -> Path:
        """Return where it would be written now."""
        return expected_path(
            image, self.folder, self.settings, self.context, self.infotext, is_grid=self.is_grid, suffix=self.suffix
        )

    def to_json(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        context = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in asdict(self.context).items()
        }
        return {
            "folder": str(self.folder),
            "settings": self.settings.differences(),
            "context": context,
            "infotext": self.infotext,
            "is_grid": self.is_grid,
            "suffix": self.suffix,
            "items": dict(self.items),
            "task_id": self.task_id,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Unsaved":
        """The inverse. Raises KeyError, TypeError, ValueError for what somebody has edited."""
        context = dict(data["context"])
        for name in TIMES:
            if context.get(name):
                context[name] = datetime.fromisoformat(context[name])
        known = {item.name for item in fields(NameContext)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in context.items() if name in known
        }
        return cls(
            Path(data["folder"]),
            Settings().with_changes(data["settings"]),
            NameContext(**values),
            data["infotext"],
            bool(data["is_grid"]),
            str(data["suffix"]),
            {str(key): str(text) for key, text in data["items"].items()},
            str(data.get("task_id", "")),
        )


@dataclass(frozen=True)
class SavedLate:
    """An image that was kept (`before` None: in memory) is now saved as `after`."""

    before: Path | None
    after: Path
    image: Image.Image
    unsaved: Unsaved


OnSaved = Callable[[SavedLate], None]


@dataclass
class _Kept:
    unsaved: Unsaved
    image: Image.Image | None  # None: it is in the file
    path: Path | None  # None: in memory


def temporary_spool(data_dir: Path) -> Path:
    """Where images are kept that the data folder does not take: in the system's temporary folder, under a name that no
    other data folder has."""
    name = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"featherweight-spool-{name}"


@dataclass
class Spool:
    """The kept images. `folders` are tried in order; they are readable by this user alone. `close()` ends the thread;
    files stay for the next start. `allowed`: the folders that images may be saved in, see `Output`."""

    folders: Sequence[Path]
    allowed: tuple[Path, ...] | None = None
    retry_s: float = RETRY_S
    on_pressure: Callable[[], None] = lambda: None
    _listeners: list[OnSaved] = field(default_factory=list)
    _kept: list[_Kept] = field(default_factory=list)
    _condition: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _closing: bool = False

    def listen(self, on_saved: OnSaved) -> None:
        """Have it told when an image is saved after all."""
        self._listeners.append(on_saved)

    def start(self) -> int:
        """Take up what an earlier program kept; returns how many images that are."""
        for folder in self.folders:
            try:
                why = why_not_private(folder)
            except OSError:
                continue  # nothing was kept
            if why:
                log.warning("%s %s, so that nothing is taken from there.", folder, why)
                continue
            for note in sorted(folder.glob("*.json")):
                self._take_up(note)
        return len(self._kept)

    def _take_up(self, note: Path) -> None:
        path = note.with_suffix(".png")
        if not (is_own_file(note) and is_own_file(path)):
            log.warning("%s or its image is a link, missing, or another user's; it is left there.", note)
            return
        try:
            unsaved = Unsaved.from_json(read_json_file(note, constant=float))
            check_folder(unsaved.folder, self.allowed)
        except Exception as error:
            log.warning("%s names no place for its image (%s); the image stays there.", note, error)
            return
        self._add(_Kept(unsaved, None, path))

    def keep(self, image: Image.Image, unsaved: Unsaved) -> tuple[Path | None, str]:
        """Keep an image; where it is now, and a sentence that says so."""
        path = self._written(image, unsaved)
        self._add(_Kept(unsaved, None if path else image, path))
        if path is not None:
            return path, f"The image is kept as {path}, and is saved where it belongs as soon as that works."
        if sum(item.path is None for item in self._kept) >= MAX_IN_MEMORY:
            self.on_pressure()
            return None, "The image is kept in memory until it can be saved. The queue was paused: free some space now."
        return None, "The image is kept in memory until it can be saved: do not end the server, free some space."

    @property
    def notice(self) -> str:
        """Return what people should know; "" if nothing is kept."""
        with self._condition:
            kept = len(self._kept)
            folders = ", ".join(sorted({str(item.unsaved.folder) for item in self._kept}))
            where = "in memory" if any(item.path is None for item in self._kept) else "aside"
        if not kept:
            return ""
        images = "1 image" if kept == 1 else f"{kept} images"
        return f"{images} could not be saved in {folders} and wait {where}. Free some space or allow writing there."

    def close(self) -> None:
        """Try once more, then end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify()
            thread = self._thread
        if thread is not None:
            thread.join(5.0)
        lost = sum(item.path is None for item in self._kept)
        if lost:
            log.error("%d images were only in memory and could not be saved.", lost)

    def _add(self, kept: _Kept) -> None:
        with self._condition:
            self._kept.append(kept)
            if self._thread is None:
                self._thread = start_loop("featherweight-spool", self._work)

    def _written(self, image: Image.Image, unsaved: Unsaved) -> Path | None:
        for folder in self.folders:
            path = folder / f"{unsaved.context.seed}-{secrets.token_hex(4)}.png"
            try:
                make_private(folder)
                data = encode_image(image, "png", unsaved.infotext, items=unsaved.items)
                write_atomic(path, data, 0o600)
                write_atomic(path.with_suffix(".json"), json.dumps(unsaved.to_json()).encode(), 0o600)
            except (OSError, OutputError) as error:
                log.info("An image cannot be kept in %s: %s", folder, error)
                for part in (path, path.with_suffix(".json")):
                    try:
                        part.unlink(missing_ok=True)
                    except OSError:
                        continue
                continue
            return path
        return None

    def _work(self) -> bool:
        with self._condition:
            if not self._closing:
                self._condition.wait(self.retry_s if self._kept else None)
            is_last = self._closing
            waiting = list(self._kept)
        for kept in waiting:
            try:
                if not self._saved(kept):
                    break
            except Exception:  # the others can be saved
                log.exception("A kept image, %s, could not be saved", kept.path)
        return not is_last

    def _saved(self, kept: _Kept) -> bool:
        """Try to save one; whether the next one is worth trying."""
        unsaved = kept.unsaved
        try:
            if kept.image is None:
                assert kept.path is not None
                with Image.open(kept.path) as file:
                    image = file.copy()
            else:
                image = kept.image
            target = unsaved.save(image)
        except OutputError:
            return False
        except Exception as error:
            log.warning("A kept image, %s, cannot be read: %s: %s", kept.path, type(error).__name__, error)
            target = None
        if target is not None:
            for listener in self._listeners:
                try:
                    listener(SavedLate(kept.path, target, image, unsaved))
                except Exception:  # it is saved, whoever could not be notified
                    log.exception("%s is saved, and somebody who was notified failed", target)
            if kept.path is not None:
                for part in (kept.path.with_suffix(".json"), kept.path):
                    part.unlink(missing_ok=True)
            log.info("An image that could not be saved is now %s.", target)
        with self._condition:
            self._kept.remove(kept)
        return True
