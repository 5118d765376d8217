"""The user's extensions folder: installing, updating, taking back, removing. What changes here counts after the next
start; nothing of an extension is run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlparse

from compat.store.origin import Origin, origin_of, remember
from modules.bounded import open_tar, read_bounded, read_json, tar_members
from modules.errors import BusyError, FeatherweightError, InvalidValueError, UnknownNameError

BEFORE = "extensions-before"
"""Of the cache folder: what an update or a removal took away, one state of each extension."""
MAX_ARCHIVE_BYTES = 1 << 30
MAX_FILES = 20_000
MAX_INDEX_BYTES = 1 << 24
GIT_LIMIT_S = 600
DOWNLOAD_LIMIT_S = 60
QUESTION = (
    "{} runs code of strangers with the rights of this program: it can read and change all files that you can. Install "
    "it only if you trust who wrote it."
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,99}")
_SUBMODULES = ("--recurse-submodules", "--shallow-submodules")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class NotAllowedHere(FeatherweightError):  # noqa: N818 - a refusal
    """Extensions may not be changed by this server."""

    status = 403


class NotAgreed(FeatherweightError):  # noqa: N818 - a question
    """The user has not said yes; the message is the question."""

    status = 409


@dataclass(frozen=True)
class Offer:
    """An entry of an index: an extension that can be installed."""

    name: str
    address: str
    description: str = ""
    tags: tuple[str, ...] = ()


class ExtensionStore:
    """The extensions of `folder`. `is_open`: whether this server may change them."""

    def __init__(self, folder: Path, cache_dir: Path, is_open: bool, git: str | None = None) -> None:
        self.folder = folder
        self.is_open = is_open
        self._before = cache_dir / BEFORE
        self._git = shutil.which("git") if git is None else git

    def check_open(self) -> None:
        """Raise `NotAllowedHere` where other machines reach the server."""
        if not self.is_open:
            raise NotAllowedHere(
                "Other machines reach this server, so that extensions cannot be installed, updated or removed by it. "
                "Start it without --listen, or with --enable-insecure-extension-access."
            )

    def place_of(self, name: str) -> Path:
        """The folder of an installed extension. Raises `UnknownNameError`."""
        names = [place.name for place in self.folder.iterdir() if place.is_dir()] if self.folder.is_dir() else []
        if name not in names:
            raise UnknownNameError.of("installed extension", name, sorted(names))
        return self.folder / name

    def install(self, source: str, agreed: bool, name: str = "", branch: str = "") -> Path:
        """Put an extension into the folder: from an address (git, else its archive), an archive or a folder of this
        machine. Raises `NotAgreed` with the question, `InvalidValueError` for what is none or is there already."""
        self.check_open()
        source = source.strip()
        name = name or name_of(source)
        target = self.folder / name
        if target.exists():
            raise InvalidValueError(f"There is an extension {name!r} already; update or remove it.")
        if not agreed:
            raise NotAgreed(QUESTION.format(name))
        with self._fresh() as new:
            origin = self._fetch(source, new, branch)
            self._check_extension(new, source)
            remember(new, origin)
            new.replace(target)
        return target

    def update(self, name: str) -> str:
        """Fetch an extension again from where it came; what was there is kept for `restore`. Returns the new version.
        Raises `InvalidValueError` for a folder that was put there by hand."""
        self.check_open()
        place = self.place_of(name)
        origin = origin_of(place)
        if not origin.address:
            raise InvalidValueError(f"It is not known where {name!r} came from: update its folder by hand.")
        with self._fresh() as new:
            fetched = self._fetch(origin.address, new, origin.branch)
            self._check_extension(new, origin.address)
            remember(new, fetched)
            self._keep(place)
            new.replace(place)
        return fetched.version

    def restore(self, name: str) -> None:
        """Put back what the last update or removal took away; what is there now takes its place."""
        self.check_open()
        kept = self._before / name
        if not kept.is_dir():
            raise UnknownNameError.of("earlier state of an extension", name, self.restorable)
        place = self.folder / name
        with self._fresh() as aside:
            shutil.rmtree(aside, ignore_errors=True)
            if place.exists():
                place.replace(aside)
            kept.replace(place)
            if aside.exists():
                shutil.move(aside, kept)

    @property
    def restorable(self) -> list[str]:
        """The extensions of which an earlier state is kept."""
        return sorted(place.name for place in self._before.iterdir()) if self._before.is_dir() else []

    def remove(self, name: str, agreed: bool) -> None:
        """Take an extension away; it is kept for `restore` until the next removal or update of its name."""
        self.check_open()
        place = self.place_of(name)
        if not agreed:
            raise NotAgreed(f"Remove {name}? Its settings stay; it can be taken back.")
        self._keep(place)

    def _keep(self, place: Path) -> None:
        kept = self._before / place.name
        self._before.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.move(place, kept)

    def _fresh(self) -> _Fresh:
        self.folder.mkdir(parents=True, exist_ok=True)
        return _Fresh(self.folder)

    def _fetch(self, source: str, new: Path, branch: str) -> Origin:
        if is_address(source):
            return self._fetch_address(source, new, branch)
        path = Path(source).expanduser()
        if path.is_dir():
            shutil.copytree(path, new, dirs_exist_ok=True, symlinks=True)
            return Origin(str(path.absolute()))
        if path.is_file() and path.name.lower().endswith(_ARCHIVES):
            unpack(path, new)
            return Origin(str(path.absolute()))
        raise InvalidValueError(
            f"{source!r} is no extension: give an address that begins with https://, a folder, or an archive "
            f"({', '.join(_ARCHIVES)})."
        )

    def _fetch_address(self, address: str, new: Path, branch: str) -> Origin:
        is_archive = urlparse(address).path.lower().endswith(_ARCHIVES)
        if self._git and not is_archive:
            words = [
                self._git,
                "clone",
                "--quiet",
                "--depth",
                "1",
                *_SUBMODULES,
                *(["--branch", branch] if branch else []),
            ]
            self._run_git([*words, "--", address, str(new)])
            return origin_of(new) if origin_of(new).address else Origin(address, branch)
        url = address if is_archive else f"{address.removesuffix('.git').rstrip('/')}/archive/{branch or 'HEAD'}.tar.gz"
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / PurePosixPath(urlparse(url).path).name
            archive.write_bytes(download(url, MAX_ARCHIVE_BYTES))
            unpack(archive, new)
        return Origin(address, branch)

    def _run_git(self, words: list[str]) -> None:
        environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=GIT_LIMIT_S, env=environ)
        except subprocess.TimeoutExpired as error:
            raise BusyError(f"git took longer than {GIT_LIMIT_S // 60} minutes; nothing was changed.") from error
        if done.returncode:
            tail = " ".join(done.stderr.strip().splitlines()[-2:])
            raise InvalidValueError(
                f"git could not fetch it: {tail or f'exit status {done.returncode}'}. Nothing was changed."
            )

    def _check_extension(self, folder: Path, source: str) -> None:
        parts = ("scripts", "javascript", "localizations", "install.py", "preload.py", "style.css", "metadata.ini")
        if not any((folder / part).exists() for part in parts):
            raise InvalidValueError(
                f"{source} holds no extension: none of {', '.join(parts)} is in its folder. Nothing was changed."
            )


class _Fresh:
    """An empty folder beside the extensions, removed at the end unless it was moved away."""

    def __init__(self, beside: Path) -> None:
        self._beside = beside

    def __enter__(self) -> Path:
        self._folder = Path(tempfile.mkdtemp(prefix=".new-", dir=self._beside))
        return self._folder / "extension"

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def is_address(source: str) -> bool:
    """Whether a source lies elsewhere. Raises `InvalidValueError` for an address that is not https."""
    scheme = urlparse(source).scheme.lower()
    if scheme == "https" or (scheme == "http" and urlparse(source).hostname in ("127.0.0.1", "localhost")):
        return True
    if scheme in ("http", "git", "ssh", "ftp", "file", "ext") or source.startswith(("git@", "-")):
        raise InvalidValueError(f"{source!r} is no address to install from: it must begin with https://.")
    return False


def name_of(source: str) -> str:
    """The folder's name that a source gives. Raises `InvalidValueError`."""
    path = urlparse(source).path if is_address(source) else source
    name = PurePosixPath(path.replace("\\", "/").rstrip("/")).name
    for end in (".git", *sorted(_ARCHIVES, key=len, reverse=True)):
        name = name[: -len(end)] if name.lower().endswith(end) else name
    if not _NAME.fullmatch(name):
        raise InvalidValueError(f"{source!r} gives no name for a folder; give one.")
    return name


def unpack(archive: Path, folder: Path) -> None:
    """The files of an archive, without the one folder around all of them. Raises `InvalidValueError` for an archive
    that is damaged, too large, or whose members lead elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                members = [(one.filename, one.file_size) for one in opened.infolist()]
                _check_members(members, archive)
                opened.extractall(folder)
        else:
            with open_tar(archive) as tape:
                files = list(tar_members(tape, MAX_FILES, MAX_ARCHIVE_BYTES))
                _check_members([(one.name, one.size) for one in files], archive)
                _extract(tape, files, folder, archive)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise InvalidValueError(f"{archive.name} cannot be unpacked: {error}. Nothing was changed.") from error
    inside = list(folder.iterdir())
    if len(inside) == 1 and inside[0].is_dir() and inside[0].name != "scripts":
        aside = folder.with_name(f"{folder.name}-inner")
        inside[0].replace(aside)
        folder.rmdir()
        aside.replace(folder)


def _extract(tape: tarfile.TarFile, files: Iterable[tarfile.TarInfo], folder: Path, archive: Path) -> None:
    """Its folders and files, with no rights or owners of theirs; Python knows filters only since 3.11.4."""
    for member in files:
        path = folder / member.name
        source = tape.extractfile(member) if member.isfile() else None
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif source is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
        else:
            raise InvalidValueError(f"{archive.name} is refused: {member.name!r} is a link or a device.")


def _check_members(members: list[tuple[str, int]], archive: Path) -> None:
    if len(members) > MAX_FILES or sum(size for _, size in members) > MAX_ARCHIVE_BYTES:
        raise InvalidValueError(f"{archive.name} is too large: at most {MAX_FILES} files and 1 GB are unpacked.")
    for name, _ in members:
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if ".." in parts or name.startswith(("/", "\\")) or ":" in (parts[0] if parts else ""):
            raise InvalidValueError(f"{archive.name} is refused: {name!r} leads out of its folder.")


def download(url: str, limit_bytes: int) -> bytes:
    """What an address gives. Raises `InvalidValueError` for what cannot be had or is larger than allowed."""
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_LIMIT_S) as reply:
            data: bytes = reply.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        raise InvalidValueError(f"{url} could not be fetched: {error}. Check the address and the network.") from error
    if len(data) > limit_bytes:
        raise InvalidValueError(f"{url} is larger than {limit_bytes >> 20} MB and was not fetched.")
    return data


def read_index(source: str, search: str = "", fetch: Callable[[str, int], bytes] = download) -> list[Offer]:
    """The entries of an index file (JSON as the reference UI's: {"extensions": [{"name", "url", "description",
    "tags"}]}), from an address or a file, of those that hold all words of `search`. Raises `InvalidValueError`."""
    try:
        data = (
            fetch(source, MAX_INDEX_BYTES)
            if is_address(source)
            else read_bounded(Path(source).expanduser(), MAX_INDEX_BYTES)
        )
        found: Any = read_json(data)
    except OSError as error:
        raise InvalidValueError(f"The index {source} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InvalidValueError(f"The index {source} is no JSON file: {error}.") from error
    entries = found.get("extensions", []) if isinstance(found, dict) else []
    offers = []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("url"):
            given = entry.get("tags")
            tags = tuple(map(str, given)) if isinstance(given, list) else ()
            offers.append(Offer(str(entry.get("name", "")), str(entry["url"]), str(entry.get("description", "")), tags))
    words = search.lower().split()
    return [
        one
        for one in offers
        if all(word in f"{one.name} {one.description} {' '.join(one.tags)}".lower() for word in words)
    ]


def size_bytes(folder: Path) -> int:
    """What an extension takes on disk, its repository included."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())
