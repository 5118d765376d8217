"""The model files on disk: by kind and size, what was not used for long, doubles, missing parts; moving and
deleting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from modules.downloads.addresses import PICKLES, SUFFIXES
from modules.downloads.downloads import model_folders
from modules.downloads.known import KnownModel, known_models
from modules.downloads.remote_file import WORTHWHILE, saved_by_eight_bits
from modules.errors import InvalidValueError, UnknownNameError
from modules.model_shelf.headers import Headers, missing_parts
from modules.model_shelf.trash import Trash, Trashed, beside
from modules.models.detection.files import CHECKPOINTS, ENCODERS, LORAS, VAES, Detected
from modules.models.files.catalogue import HashCache
from modules.system.atomic_files import move_together, output_error
from modules.system.file_names import place_inside
from modules.system.model_folders import files_below
from modules.system.paths import Paths

LastUses = Callable[[str], Mapping[str, float]]
"""By "model" or "lora": when an image was made last with each name, in seconds since 1970."""
OnHash = Callable[[int, int], None]
"""(bytes read, bytes to read); raises to stop."""


NOTHING = Detected()


@dataclass(frozen=True)
class ShelfFile:
    """A model file. `key` names it in calls; `folder` is below the folder of its kind. `used_at` None: no image of the
    history was made with it, or nobody can say. `doubles`: keys of files with the same bytes; `may_be_double`: others
    have its size, and their hashes were not taken yet. `found`: what its header says."""

    key: str
    kind: str
    name: str
    folder: str
    path: Path
    size_bytes: int
    added_at: float
    used_at: float | None = None
    sha256: str = ""
    doubles: tuple[str, ...] = ()
    may_be_double: bool = False
    missing: tuple[KnownModel, ...] = ()
    saves_bytes: int = 0
    is_part_of_program: bool = False
    found: Detected = NOTHING


class Shelf:
    """The models of a program. `refresh` is called after files were moved."""

    def __init__(self, paths: Paths, hashes: HashCache, last_uses: LastUses, refresh: Callable[[], object]) -> None:
        self._paths, self._hashes, self._last_uses, self._refresh = paths, hashes, last_uses, refresh
        self._headers = Headers()
        self.trash = Trash(paths.data_dir / "trash" / "models")

    @property
    def roots(self) -> dict[str, tuple[Path, ...]]:
        """The folders that are searched, by kind."""
        return model_folders(self._paths)

    def files(self) -> tuple[ShelfFile, ...]:
        """All of them as they are now, the largest first."""
        found = list(self._listed())
        known = known_models(self._paths.root / "configs")
        parts = [one.path for one in found if one.kind in (ENCODERS, VAES, CHECKPOINTS)]
        uses = {CHECKPOINTS: self._last_uses("model"), LORAS: self._last_uses("lora")}
        by_size: dict[int, list[ShelfFile]] = {}
        for one in found:
            by_size.setdefault(one.size_bytes, []).append(one)
        return tuple(
            replace(
                one,
                used_at=_used(one, uses.get(one.kind, {})),
                doubles=tuple(
                    other.key
                    for other in by_size[one.size_bytes]
                    if other.key != one.key and one.sha256 and other.sha256 == one.sha256
                ),
                may_be_double=any(
                    other.key != one.key and not (one.sha256 and other.sha256) for other in by_size[one.size_bytes]
                ),
                missing=missing_parts(one.path, known, parts, self._headers) if one.kind == CHECKPOINTS else (),
                saves_bytes=self._saves(one),
                found=self._headers.of(one.path).found,
            )
            for one in sorted(found, key=lambda one: (-one.size_bytes, one.key))
        )

    def _listed(self) -> list[ShelfFile]:
        found: dict[Path, ShelfFile] = {}
        for kind, roots in self.roots.items():
            for number, root in enumerate(roots):
                for path in sorted(files_below(root)):
                    if path in found or path.suffix.lower() not in (*SUFFIXES, *PICKLES) or path.name.startswith("."):
                        continue
                    try:
                        stat = path.stat()
                        if not path.is_file():
                            continue
                    except OSError:  # gone since the folder was listed
                        continue
                    way = path.relative_to(root).as_posix()
                    found[path] = ShelfFile(
                        key=f"{kind}/{number}/{way}",
                        kind=kind,
                        name=path.name,
                        folder=way.rpartition("/")[0],
                        path=path,
                        size_bytes=stat.st_size,
                        added_at=stat.st_mtime,
                        sha256=self._hashes.lookup(path, stat.st_size, stat.st_mtime_ns) or "",
                        is_part_of_program=self._is_ours(path),
                    )
        return list(found.values())

    def _is_ours(self, path: Path) -> bool:
        """Whether it came with the program: without it the first start has no model."""
        folder = self._paths.root / "models"
        return path.is_relative_to(folder) and (
            path.stem.startswith("featherweight-scenes") or path.stem in ("balloon", "blueprint")
        )

    def _saves(self, one: ShelfFile) -> int:
        if one.kind != CHECKPOINTS:
            return 0
        saved = saved_by_eight_bits(self._headers.of(one.path).header.tensors)
        return saved if saved > WORTHWHILE * one.size_bytes else 0

    def file(self, key: str) -> ShelfFile:
        """One of them. Raises `UnknownNameError`."""
        one = next((each for each in self._listed() if each.key == key), None)
        if one is None:
            raise UnknownNameError(f"There is no model file {key[:200]!r}; look again, it may have been moved.")
        return one

    def take_hashes(self, on_hash: OnHash) -> int:
        """Take the sha256 of files that have the size of another one; returns of how many. Raises what `on_hash`
        raises."""
        sizes: dict[int, list[ShelfFile]] = {}
        for one in self._listed():
            sizes.setdefault(one.size_bytes, []).append(one)
        wanted = [one for group in sizes.values() if len(group) > 1 for one in group if not one.sha256]
        total, done = sum(one.size_bytes for one in wanted), 0
        for one in wanted:
            before = done
            self._hashes.sha256(one.path, lambda read, before=before: on_hash(before + read, total))  # type: ignore[misc]
            done += one.size_bytes
        return len(wanted)

    def sha256(self, key: str) -> str:
        """A file's hash, taken now where it is not known."""
        return self._hashes.sha256(self.file(key).path)

    def noted(self, key: str, name: str) -> str:
        """Return what was remembered of a file, such as its "source"; "" where nothing was."""
        return self._hashes.fact(self.file(key).path, name) or ""

    def move(self, key: str, folder: str) -> ShelfFile:
        """Move a file, and what lies beside it, into a folder below the folder of its kind; "": into that itself.

        Raises `InvalidValueError` for names that are none and where a file of that name is, `OutputError`.
        """
        one = self._own(key)
        number = int(key.split("/")[1])
        root = self.roots[one.kind][number]
        folder = folder.rstrip("/") if folder.strip("/") else folder
        target = place_inside(root, folder) if folder else root
        if any(name.startswith(".") for name in target.relative_to(root).parts):
            raise InvalidValueError(f"{folder[:80]!r} begins with a dot: the folder would be hidden.")
        pairs = [(file, target / file.name) for file in (*beside(one.path), one.path)]
        taken = next((new.name for old, new in pairs if new.exists() and old != new), None)
        if target == one.path.parent or taken:
            raise InvalidValueError(f"{taken or one.name} is in {folder or root.name} already.")
        try:
            target.mkdir(parents=True, exist_ok=True)
            move_together(pairs)
        except OSError as error:
            raise output_error(one.name, target, error) from error
        if one.sha256:
            self._hashes.remember(target / one.name, "sha256", one.sha256)
        self._refresh()
        return self.file(f"{one.kind}/{number}/{(target / one.name).relative_to(root).as_posix()}")

    def delete(self, key: str) -> Trashed:
        """Put a file into the trash. Raises `InvalidValueError` for those of the program, `OutputError`."""
        one = self._own(key)
        trashed = self.trash.put(one.path, one.kind)
        self._refresh()
        return trashed

    def restore(self, trash_id: str) -> Path:
        """See `Trash.restore`."""
        path = self.trash.restore(trash_id)
        self._refresh()
        return path

    def _own(self, key: str) -> ShelfFile:
        one = self.file(key)
        if one.is_part_of_program:
            raise InvalidValueError(f"{one.name} is a part of the program and stays where it is.")
        return one


def _used(one: ShelfFile, uses: Mapping[str, float]) -> float | None:
    """Read the times by the names that infotexts have: of a checkpoint its name without suffix, folders joined by
    underscores."""
    stem = one.path.stem
    joined = "_".join((*one.folder.split("/"), stem)) if one.folder else stem
    times = [uses[name.lower()] for name in {stem, joined} if name.lower() in uses]
    return max(times, default=None)
