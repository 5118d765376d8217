"""A look at folders: each directory is listed once, and what lies next to a file is known without asking the disk."""

import hashlib
import logging
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)


def as_folders(folders: Path | Iterable[Path] | None) -> tuple[Path, ...]:
    """One folder, several, or none, as a tuple."""
    if folders is None:
        return ()
    return (folders,) if isinstance(folders, Path) else tuple(folders)


@dataclass(frozen=True)
class Listing:
    """Findings of one look: every directory below `roots` with its files by name, as `walk` finds them."""

    roots: tuple[Path, ...]
    directories: Mapping[str, Mapping[str, os.DirEntry[str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, roots: Iterable[Path]) -> "Listing":
        """Look now. Folders that do not exist or may not be read are empty."""
        wanted = tuple(roots)
        return cls(
            wanted,
            {
                path: {entry.name: entry for entry in entries if _is_file(entry)}
                for root in wanted
                for path, entries in walk(root)
            },
        )

    def with_suffix(self, suffixes: tuple[str, ...]) -> Iterator[os.DirEntry[str]]:
        """The files of these suffixes (lower case, with dot), folder by folder in the order of names."""
        for files in self.directories.values():
            for name in sorted(files):
                if name.lower().endswith(suffixes) and name.lower() not in suffixes:
                    yield files[name]

    def signature(self) -> bytes:
        """Changes whenever a file comes, goes or is written."""
        digest = hashlib.blake2b(digest_size=16)
        for directory, files in self.directories.items():
            digest.update(directory.encode("utf-8", "surrogateescape"))
            for name, entry in files.items():
                try:
                    stat = entry.stat()
                except OSError:  # gone since the folder was listed
                    continue
                digest.update(f"\0{name}\0{stat.st_size}\0{stat.st_mtime_ns}".encode("utf-8", "surrogateescape"))
        return digest.digest()

    def near(self, path: Path) -> "Near":
        """List what lies next to a file, or next to a folder that is a model."""
        directory, name = os.path.split(path)
        stem = name if str(path) in self.directories else name.rpartition(".")[0] or name
        return Near(self.directories.get(directory, {}), stem, self.roots)

    def place_of(self, path: Path) -> tuple[int, str] | None:
        """The number of the root that `path` lies in, and the way from there, with forward slashes."""
        text = str(path)
        for number, root in enumerate(self.roots):
            beginning = f"{root}{os.sep}"
            if text.startswith(beginning):
                return number, text.removeprefix(beginning).replace(os.sep, "/")
        return None


@dataclass(frozen=True)
class Near:
    """The files of one directory, seen from one of them, whose name without suffix is `stem`."""

    files: Mapping[str, os.DirEntry[str]]
    stem: str
    roots: tuple[Path, ...]

    def find(self, *endings: str) -> os.DirEntry[str] | None:
        """The first file that is named like this one, with an ending instead of the suffix.

        A link is only taken for a file of these folders if it leads to one.
        """
        for ending in endings:
            entry = self.files.get(self.stem + ending)
            if entry is not None and (not entry.is_symlink() or inside(Path(entry.path), self.roots)):
                return entry
        return None


def inside(path: Path, roots: Iterable[Path]) -> Path | None:
    """The real file behind `path`, or None if it is no file, or a link to a file outside of `roots`. A file in a linked
    folder below `roots` is inside."""
    try:
        real, roots = path.resolve(strict=True), tuple(roots)
        is_below = ".." not in path.parts and any(path.is_relative_to(root) for root in roots)
        is_below = is_below and real.parent == path.parent.resolve()
        if real.is_file() and (is_below or any(real.is_relative_to(root.resolve()) for root in roots)):
            return real
    except (OSError, RuntimeError):  # RuntimeError: a ring of links
        return None
    return None


@dataclass
class FilesBelow:
    """Looks at folders of models, as often as their catalogue is brought up to date. What cannot be read (a dying disk,
    a network share that is gone) is left out, and `faults` names it."""

    faults: tuple[str, ...] = ()

    def of(self, folders: Iterable[Path], suffixes: Collection[str]) -> list[tuple[Path, list[Path]]]:
        """List by folder the files of these suffixes (lower case, with dot) below it, by name without regard to case. A
        folder that is not there is empty."""
        faults: list[str] = []

        def failed(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                faults.append(
                    f"{error.filename} cannot be read ({error.strerror}), so that its models are not there. Look at "
                    "the disk or the network share, or take the folder out of the folders of models."
                )

        found = []
        for folder in folders:
            files = [
                path for path in files_below(folder, failed) if path.suffix.lower() in suffixes and _is_there(path)
            ]
            found.append((folder, sorted(files, key=lambda path: str(path).lower())))
        for fault in set(faults) - set(self.faults):
            log.warning("%s", fault)
        self.faults = tuple(dict.fromkeys(faults))
        return found


def _is_there(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:  # a link that leads nowhere, an entry that the disk does not give
        return False


def walk(
    root: Path | str, failed: Callable[[OSError], object] = lambda error: None
) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Every directory below `root` with its entries. Links to directories are followed, after the directories
    themselves; each real directory is listed once, and a link that leads above `root` not at all, so that a walk
    always ends. `failed` receives what cannot be listed."""
    real_root = os.path.realpath(root)
    seen = set(map(str, Path(real_root).parents))
    pending, linked = [(str(root), real_root)], list[tuple[str, str]]()
    while pending or linked:
        directory, real = pending.pop() if pending else linked.pop(0)
        if real in seen:
            continue
        seen.add(real)
        try:
            with os.scandir(directory) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            failed(error)
            continue
        yield directory, found
        inner = [entry for entry in found if _is_directory(entry)]
        linked += [(entry.path, os.path.realpath(entry.path)) for entry in inner if _is_link(entry)]
        pending += [(entry.path, str(Path(real, entry.name))) for entry in reversed(inner) if not _is_link(entry)]


def files_below(root: Path | str, failed: Callable[[OSError], object] = lambda error: None) -> Iterator[Path]:
    """All that is no directory below `root`, as `walk` finds it."""
    for _, entries in walk(root, failed):
        yield from (Path(entry.path) for entry in entries if not _is_directory(entry))


def _is_link(entry: os.DirEntry[str]) -> bool:
    """Whether an entry leads elsewhere, junctions of Windows included."""
    if sys.platform == "win32" and entry.stat(follow_symlinks=False).st_reparse_tag:
        return True
    return entry.is_symlink()


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a ring of links
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a ring of links
        return False
