"""A look at folders: each directory is listed once, and what lies next to a file is known without asking the disk."""

import hashlib
import logging
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
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
    """What one look found: every directory below `roots` with its files by name.

    Links to files are listed, links to directories are not followed, so that a look always ends.
    """

    roots: tuple[Path, ...]
    directories: Mapping[str, Mapping[str, os.DirEntry[str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, roots: Iterable[Path]) -> "Listing":
        """Look now. Folders that do not exist or may not be read are empty."""
        wanted = tuple(roots)
        return cls(wanted, {path: files for root in wanted for path, files in _walk(str(root))})

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
        """What lies next to a file, or next to a folder that is a model."""
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
    """The real file behind `path`, or None if it is no file, or lies outside of `roots` once links are followed."""
    try:
        real = path.resolve(strict=True)
        if real.is_file() and any(real.is_relative_to(root.resolve()) for root in roots):
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
        """By folder the files of these suffixes (lower case, with dot) below it, by name without regard to case. Links
        to folders are not followed. A folder that is not there is empty."""
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
                path
                for place, _, names in os.walk(folder, onerror=failed)
                for path in (Path(place, name) for name in names)
                if path.suffix.lower() in suffixes and _is_there(path)
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


def _walk(directory: str) -> Iterator[tuple[str, dict[str, os.DirEntry[str]]]]:
    try:
        with os.scandir(directory) as entries:
            found = list(entries)
    except OSError:
        return
    yield directory, {entry.name: entry for entry in found if _is_file(entry)}
    for entry in sorted(found, key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a ring of links
        return False
