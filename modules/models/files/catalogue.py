"""Which checkpoint files there are, what they are called, and their hashes. Imports no torch: the page lists models
before any is loaded.

Titles and matching follow the reference UI: a title is `sub/dir/name.ext [10 hex digits]`, and a checkpoint answers to
its title, name, file name, stem, short or full sha256, the 8 digits that old infotexts have, or any part of its title.
A folder in the diffusers layout is a checkpoint too, called like the folder.
"""

import hashlib
import itertools
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from modules.errors import CheckpointError, UnknownNameError
from modules.models.files.diffusers_folder import (
    MODEL_INDEX,
    files_read,
    is_diffusers_folder,
    part_folders,
    sibling_file,
    stamp,
)
from modules.models.files.other_files import is_adapter_or_embedding
from modules.models.files.pieces import without_later_pieces
from modules.system.atomic_files import write_atomic
from modules.system.bounded import read_json_file
from modules.system.folder_lock import only_writer
from modules.system.model_folders import FilesBelow

log = logging.getLogger(__name__)

CHECKPOINT_SUFFIXES = (".safetensors", ".gguf", ".ckpt", ".pt")
HASH_CHUNK_BYTES = 1 << 20
OLD_HASH_BEGIN, OLD_HASH_BYTES = 0x100000, 0x10000
OLD_HASH = re.compile(r"(?:^|\[)([0-9a-f]{8})\]?$", re.IGNORECASE)


@dataclass(frozen=True)
class CheckpointInfo:
    """One checkpoint: a file, or a folder in the diffusers layout. `sha256` is None until it was computed once."""

    path: Path
    name: str  # relative to its folder, with suffix, forward slashes
    size_bytes: int
    mtime_ns: int
    sha256: str | None = None
    is_folder: bool = False
    modules: tuple[Path, ...] = ()  # text encoders and VAE in files of their own, as chosen

    @property
    def stem(self) -> str:
        """The file's name without suffix, or the folder's."""
        return self.path.name if self.is_folder else self.path.stem

    @property
    def model_name(self) -> str:
        """The name without suffix, folders joined by underscores, as infotexts call it."""
        return (self.name if self.is_folder else self.name.rsplit(".", 1)[0]).replace("/", "_")

    @property
    def shorthash(self) -> str | None:
        """The first 10 hex digits of the sha256."""
        return self.sha256[:10] if self.sha256 else None

    @property
    def short_title(self) -> str:
        """The name without folder and suffix, with the short hash once it is known, as infotexts call a refiner."""
        return f"{self.stem} [{self.shorthash}]" if self.sha256 else self.stem

    @property
    def title(self) -> str:
        """Return what selectors show: the name, with the short hash once it is known."""
        return f"{self.name} [{self.shorthash}]" if self.sha256 else self.name

    @property
    def config_path(self) -> Path | None:
        """The YAML next to the file, if there is one."""
        path = sibling_file(self.path, ".yaml")
        return path if path.is_file() else None

    @property
    def has_changed(self) -> bool:
        """Whether the weights on disk are not those that this describes any more, or are gone."""
        try:
            return stamp(self.path) != (self.size_bytes, self.mtime_ns)
        except OSError:
            return True

    def answers_to(self, text: str) -> bool:
        """Whether `text` names this file, in any of the ways a user or an infotext may name it."""
        return any(text.lower() in map(str.lower, names) for names in self.names)

    @property
    def names(self) -> tuple[frozenset[str], ...]:
        """Return the names of this file: names that no other file has first, then those with folders joined by
        underscores, last the file's own name, which files in several folders may share."""
        joined = [self.model_name, *([f"{self.model_name} [{self.shorthash}]"] if self.sha256 else [])]
        own = [self.title, self.name, str(self.path), *([self.sha256, self.sha256[:10]] if self.sha256 else [])]
        return frozenset(own), frozenset(joined), frozenset((self.path.name, self.stem))


class HashCache:
    """sha256 hashes and other facts by path, size and modification time, kept in one JSON file that the server and its
    workers write: each change is made to what is in the file at that moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._facts = self._read()

    def lookup(self, path: Path, size_bytes: int, mtime_ns: int) -> str | None:
        """The sha256, if the file is unchanged since it was computed."""
        return self._fact(path, "sha256", size_bytes, mtime_ns)

    def fact(self, path: Path, name: str) -> str | None:
        """Return what `remember` received for this file, if the file is unchanged."""
        stat = path.stat()
        return self._fact(path, name, stat.st_size, stat.st_mtime_ns)

    def remember(self, path: Path, name: str, value: str) -> None:
        """Keep something that was found out about a file, under a name of the caller's."""
        self._put(path, path.stat(), name, value)

    def read_again(self) -> None:
        """Take over what other processes (workers) have found out."""
        with self._lock:
            self._facts = self._read() or self._facts

    def _put(self, path: Path, stat: os.stat_result, name: str, value: str) -> None:
        try:
            with self._lock, only_writer(self._path):
                self._change(path, stat, name, value)
                write_atomic(self._path, json.dumps(self._facts, indent=1).encode())
        except OSError as error:
            log.warning("The hash cache %s cannot be written (%s).", self._path, error)
            with self._lock:
                self._change(path, stat, name, value)

    def _change(self, path: Path, stat: os.stat_result, name: str, value: str) -> None:
        self._facts = self._read() or self._facts
        known = self._facts.get(str(path), {})
        if (known.get("size"), known.get("mtime_ns")) != (stat.st_size, stat.st_mtime_ns):
            known = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        self._facts[str(path)] = {**known, name: value}

    def _fact(self, path: Path, name: str, size_bytes: int, mtime_ns: int) -> str | None:
        entry = self._facts.get(str(path))
        if entry and entry.get("size") == size_bytes and entry.get("mtime_ns") == mtime_ns and name in entry:
            return str(entry[name])
        return None

    def known(self, path: Path) -> str | None:
        """The sha256 of a checkpoint, file or folder, if it need not be computed."""
        files = files_read(path)
        if files == (path,):
            stat = path.stat()
            return self.lookup(path, stat.st_size, stat.st_mtime_ns)
        hashes = {file: self.lookup(file, (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files}
        return None if None in hashes.values() else hash_of_files(path, {file: str(hashes[file]) for file in hashes})

    def checkpoint_sha256(self, path: Path, on_read: Callable[[int], None] = lambda read_bytes: None) -> str:
        """The sha256 of a checkpoint: a file's own; of a folder or pieces that of the list of the files' hashes, as the
        command `sha256sum FILES | sha256sum` gives it for the files that are read, in the order of their names."""
        files = files_read(path)
        if files == (path,):
            return self.sha256(path, on_read)
        hashes: dict[Path, str] = {}
        before = 0
        for file in files:
            hashes[file] = self.sha256(file, lambda read, before=before: on_read(before + read))  # type: ignore[misc]
            before += file.stat().st_size
        return hash_of_files(path, hashes)

    def sha256(self, path: Path, on_read: Callable[[int], None] = lambda read_bytes: None) -> str:
        """The file's sha256 in hex, computed at most once per content. `on_read` receives after each piece how many
        bytes were read so far; what it raises ends the computing."""
        stat = path.stat()
        known = self.lookup(path, stat.st_size, stat.st_mtime_ns)
        if known:
            return known
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(HASH_CHUNK_BYTES):
                digest.update(chunk)
                on_read(file.tell())
        self._put(path, stat, "sha256", digest.hexdigest())
        return digest.hexdigest()

    def _read(self) -> dict[str, dict[str, object]]:
        try:
            hashes = read_json_file(self._path)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("The hash cache %s cannot be read (%s); hashes are computed again.", self._path.name, error)
            return {}
        entries = hashes if isinstance(hashes, dict) else {}
        return {path: facts for path, facts in entries.items() if isinstance(facts, dict)}


def old_hash(path: Path) -> str:
    """Return the model hash that infotexts before 2023 record ("autov1"): the first 8 hex digits of the sha256 of 64
    KiB from the first MiB on. "" for a folder, which has none."""
    if path.is_dir():
        return ""
    with path.open("rb") as file:
        file.seek(OLD_HASH_BEGIN)
        return hashlib.sha256(file.read(OLD_HASH_BYTES)).hexdigest()[:8]


def sha256_of(path: Path) -> str:
    """The sha256 of a checkpoint, file or folder, computed now; see `HashCache.checkpoint_sha256`."""
    files = files_read(path)
    if files != (path,):
        return hash_of_files(path, {file: _sha256(file) for file in files})
    return _sha256(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_of_files(checkpoint: Path, hashes: dict[Path, str]) -> str:
    """The sha256 of a folder, or of a checkpoint in pieces, from those of its files."""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    lines = "".join(f"{hashes[file]}  {file.relative_to(folder).as_posix()}\n" for file in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


class CheckpointCatalogue:
    """The checkpoints below some folders, plus single files named on the command line."""

    def __init__(self, folders: Iterable[Path], cache: HashCache, files: Iterable[Path] = ()) -> None:
        self._folders = tuple(folders)
        self._files = tuple(files)
        self.cache = cache
        self._lock = threading.Lock()
        self._entries: tuple[CheckpointInfo, ...] = ()
        self._left_out: tuple[str, ...] = ()
        self._below = FilesBelow()
        self._old_hashes: dict[tuple[Path, int, int], str] = {}
        self._others: dict[tuple[Path, int, int], bool] = {}
        self._said: set[tuple[str, Path]] = set()  # names of several files that the log has
        self.refresh()

    def refresh(self) -> tuple[CheckpointInfo, ...]:
        """Look at the folders again."""
        found: dict[Path, CheckpointInfo] = {}
        faults: list[str] = []
        for file in self._files:
            if not (file.is_file() or is_diffusers_folder(file)):
                raise CheckpointError(f"{file}: no such checkpoint file. Check the path given with --ckpt.")
            found[file.resolve()] = self._describe(file, file.name)
        for folder, files in self._below.of(self._folders, (*CHECKPOINT_SUFFIXES, Path(MODEL_INDEX).suffix)):
            for path in _checkpoints_below(folder, files):
                name = path.relative_to(folder).as_posix() if path != folder else folder.name
                try:
                    found.setdefault(path.resolve(), self._describe(path, name))
                except Exception as error:  # whatever one file holds, the others are there
                    log.warning("%s is left out of the list of checkpoints", path, exc_info=error)
                    faults.append(f"{path} cannot be read and was left out: {type(error).__name__}: {error}")
        with self._lock:
            self._entries, self._left_out = tuple(found.values()), tuple(faults)
        return self._entries

    @property
    def faults(self) -> tuple[str, ...]:
        """Folders and checkpoints that could not be read."""
        return (*self._below.faults, *self._left_out)

    @property
    def entries(self) -> tuple[CheckpointInfo, ...]:
        """All checkpoints as of the last refresh."""
        return self._entries

    def find(self, text: str) -> CheckpointInfo | None:
        """The checkpoint that `text` names: exactly (of several with one file name the one in the fewest folders, with
        a line in the log), else by the hash of old infotexts, else as part of a title (the shortest), else without its
        hash."""
        text = text.strip()
        if not text:
            return None
        called = [(info, info.names) for info in self._entries]
        ways: tuple[Callable[[str], str], ...] = (str, str.lower)
        for place, written in itertools.product(range(3), ways):
            named = [info for info, names in called if written(text) in map(written, names[place])]
            if named:
                return self._first_of(text, named)
        old = OLD_HASH.search(text)
        if old is not None:
            for info in self._entries:
                if self._old_hash(info) == old[1].lower():
                    return info
        containing = [info for info in self._entries if text.lower() in info.title.lower()]
        if containing:
            return min(containing, key=lambda info: len(info.title))
        without_hash = text.rsplit(" [", 1)[0]
        return self.find(without_hash) if without_hash != text else None

    def _first_of(self, text: str, named: Sequence[CheckpointInfo]) -> CheckpointInfo:
        first = min(named, key=lambda info: info.name.count("/"))
        if len({info.sha256 or info.path for info in named}) > 1 and (text, first.path) not in self._said:
            self._said.add((text, first.path))
            titles = ", ".join(info.title for info in named)
            log.warning("%r may be any of %s. %s is used; write the folder too for another.", text, titles, first.name)
        return first

    def get(self, text: str) -> CheckpointInfo:
        """Like `find`; raises `UnknownNameError` with the known titles."""
        info = self.find(text)
        if info is None:
            raise UnknownNameError.of("checkpoint", text, [entry.title for entry in self._entries])
        return info

    def default(self, wanted: str | None) -> CheckpointInfo:
        """The wanted checkpoint, or the first there is when nothing is wanted; `CheckpointError` when there is none."""
        if wanted:
            return self.get(wanted)
        first = self.first
        if first is None:
            places = ", ".join(str(folder) for folder in self._folders)
            raise CheckpointError(
                f"There is no checkpoint (looked for {', '.join(CHECKPOINT_SUFFIXES)} in {places}). "
                "Put a Stable Diffusion checkpoint there and press refresh."
            )
        return first

    @property
    def first(self) -> CheckpointInfo | None:
        """The first entry that is no adapter or embedding, which people keep among checkpoints too."""
        return next((info for info in self._entries if not self._is_other(info)), None)

    def with_hash(
        self, info: CheckpointInfo, on_read: Callable[[int], None] = lambda read_bytes: None
    ) -> CheckpointInfo:
        """The entry with its sha256, computing it when it is not cached (`on_read` as in `HashCache.sha256`); the
        catalogue remembers it."""
        if info.sha256:
            return info
        hashed = replace(info, sha256=self.cache.checkpoint_sha256(info.path, on_read))
        with self._lock:
            self._entries = tuple(hashed if entry.path == info.path else entry for entry in self._entries)
        return hashed

    def _is_other(self, info: CheckpointInfo) -> bool:
        """Looked at once for each content."""
        key = (info.path, info.size_bytes, info.mtime_ns)
        if key not in self._others:
            self._others[key] = is_adapter_or_embedding(info.path)
        return self._others[key]

    def _old_hash(self, info: CheckpointInfo) -> str:
        """Computed once for each content."""
        key = (info.path, info.size_bytes, info.mtime_ns)
        if key not in self._old_hashes:
            try:
                self._old_hashes[key] = old_hash(info.path)
            except OSError:  # gone since the folders were looked at
                return ""
        return self._old_hashes[key]

    def _describe(self, path: Path, name: str) -> CheckpointInfo:
        size, mtime_ns = stamp(path)
        is_folder = path.is_dir()
        return CheckpointInfo(
            path=path,
            name=name,
            size_bytes=size,
            mtime_ns=mtime_ns,
            sha256=self.cache.known(path),
            is_folder=is_folder,
        )


def _checkpoints_below(folder: Path, files: Sequence[Path]) -> Iterator[Path]:
    """Checkpoint files and folders in the diffusers layout, whose own files are not listed, by name."""
    models = [path.parent for path in files if path.name == MODEL_INDEX]
    paths = sorted({*without_later_pieces(files), *models}, key=lambda path: str(path).lower())
    parts = {part for model in models for part in part_folders(model)}
    yield from (model for model in models if model == folder)
    for path in paths:
        if path in models or (
            path.suffix.lower() in CHECKPOINT_SUFFIXES
            and ".vae." not in path.name.lower()
            and parts.isdisjoint(path.parents)
        ):
            yield path
