"""The user's extensions folder: installing, updating, taking back, removing. What changes here counts after the next
start; nothing of an extension is run."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import urlparse
from urllib.request import getproxies

from compat.store.origin import Origin, origin_of, remember
from modules.downloads.transport import FileTransport
from modules.errors import BusyError, FeatherweightError, InvalidValueError, UnknownNameError
from modules.system.atomic_files import move_together, output_error, remove_own
from modules.system.bounded import open_tar, read_json, tar_members
from modules.system.file_names import check_name, given_path, lies_in, place_inside, sanitize_name, without_controls

BEFORE = "extensions-before"
"""A folder in the cache: what an update or a removal took away, one state for each extension."""
MAX_ARCHIVE_BYTES = 1 << 30
MAX_FILES = 20_000
MAX_INDEX_BYTES = 1 << 24
FETCH_LIMIT_S = 600
INDEX_LIMIT_S = 60
QUESTION = (
    "{} runs code of strangers with the rights of this program: it can read and change all files that you can. Install "
    "it only if you trust who wrote it."
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,99}")
_REFS = "/info/refs?service=git-upload-pack"
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

    def __init__(
        self,
        folder: Path,
        cache_dir: Path,
        is_open: bool,
        git: str | None = None,
        transport: FileTransport | None = None,
    ) -> None:
        self.transport = transport or FileTransport()
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
        names = [place.name for place in _entries(self.folder) if place.is_dir()]
        if name not in names:
            raise UnknownNameError.of("installed extension", name, sorted(names))
        return self.folder / name

    def install(self, source: str, agreed: bool, name: str = "", branch: str = "") -> Path:
        """Put an extension into the folder: from an address (git, else its archive), an archive or a folder of this
        machine. Raises `NotAgreed` with the question, `InvalidValueError` for what is none or is there already."""
        self.check_open()
        source, branch = source.strip(), branch.strip()
        if branch.startswith("-") or without_controls(source + branch) != source + branch:
            raise InvalidValueError(
                "The source or the branch begins with - or holds control characters. Type them again."
            )
        name = check_folder_name(name) if name else name_of(source)
        target = place_inside(self.folder, name)
        there = next((one.name for one in _entries(self.folder) if one.name.casefold() == name.casefold()), None)
        if there is not None:
            raise InvalidValueError(f"There is an extension {there!r} already; update or remove it.")
        if not agreed:
            raise NotAgreed(QUESTION.format(name))
        with self._fresh() as new:
            origin = self._fetch(source, new, branch)
            self._check_extension(new, source)
            remember(new, origin)
            _move([(new, target)])
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
            self._keep(place, new)
        return fetched.version

    def restore(self, name: str) -> None:
        """Put back what the last update or removal took away; what is there now takes its place."""
        self.check_open()
        if name not in self.restorable:
            raise UnknownNameError.of("earlier state of an extension", name, self.restorable)
        kept, place = self._before / name, self.folder / name
        if not os.path.lexists(place):
            return _move([(kept, place)])
        aside = self._aside(name)
        return _move([(place, aside), (kept, place), (aside, kept)])

    @property
    def restorable(self) -> list[str]:
        """The extensions of which an earlier state is kept."""
        return sorted(place.name for place in _entries(self._before))

    def remove(self, name: str, agreed: bool) -> None:
        """Take an extension away; it is kept for `restore` until the next removal or update of its name."""
        self.check_open()
        place = self.place_of(name)
        if not agreed:
            raise NotAgreed(f"Remove {name}? Its settings stay; it can be taken back.")
        self._keep(place)

    def _keep(self, place: Path, new: Path | None = None) -> None:
        """Keep an extension for `restore` in place of its earlier state, and put the new one where it was. All of it is
        done or nothing; the earlier state, which an update or a removal kept, is deleted at the end."""
        kept, earlier = self._before / place.name, self._aside(place.name)
        moves = [(place, kept), *([(new, place)] if new is not None else [])]
        _move([(kept, earlier), *moves] if os.path.lexists(kept) else moves)
        remove_own(earlier)

    def _aside(self, name: str) -> Path:
        """A free place for a while, hidden next to the kept states."""
        self._before.mkdir(parents=True, exist_ok=True)
        return self._before / f".{name}.{secrets.token_hex(4)}"

    def _fresh(self) -> _Fresh:
        self.folder.mkdir(parents=True, exist_ok=True)
        return _Fresh(self.folder)

    def _fetch(self, source: str, new: Path, branch: str) -> Origin:
        if is_address(source):
            return self._fetch_address(source, new, branch)
        path = given_path(source)
        if path.is_dir():
            self._copy(path, new)
            return Origin(str(path.absolute()))
        if path.is_file() and path.name.lower().endswith(_ARCHIVES):
            unpack(path, new)
            return Origin(str(path.absolute()))
        raise InvalidValueError(
            f"{source!r} is no extension: give an address that begins with https://, a folder, or an archive "
            f"({', '.join(_ARCHIVES)})."
        )

    def _copy(self, source: Path, new: Path) -> None:
        """Copy a folder that was looked at before: it holds an extension, not too much, and not the folder of
        extensions itself. Links are copied as links. Raises `InvalidValueError`."""
        if lies_in(self.folder, (source,)):
            raise InvalidValueError(
                f"{source} holds the folder of extensions itself. Give the folder of one extension."
            )
        self._check_extension(source, str(source))
        files = size = 0
        try:
            for place, folders, names in os.walk(source):
                found = [Path(place, name).lstat() for name in (*folders, *names)]
                files, size = files + len(found), size + sum(one.st_size for one in found)
                _check_size(files, size, source)
                if any(stat.S_IFMT(one.st_mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK) for one in found):
                    raise InvalidValueError(f"{source} is refused: {place} holds a device, a pipe or a socket.")
            shutil.copytree(source, new, symlinks=True)
        except OSError as error:
            raise InvalidValueError(f"{source} cannot be copied: {str(error)[:500]}. Nothing was changed.") from error

    def _fetch_address(self, address: str, new: Path, branch: str) -> Origin:
        is_archive = urlparse(address).path.lower().endswith(_ARCHIVES)
        if self._git and not is_archive:
            url, pinned = self._pinned(address)
            words = ["clone", "--quiet", "--depth", "1", *_SUBMODULES, *(["--branch", branch] if branch else [])]
            self._run_git([self._git, *pinned, *words, "--", url, str(new)])
            return replace(origin_of(new), address=address)
        url = address if is_archive else f"{address.removesuffix('.git').rstrip('/')}/archive/{branch or 'HEAD'}.tar.gz"
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / sanitize_name(PurePosixPath(urlparse(url).path).name)
            self._download(url, archive)
            unpack(archive, new)
        return Origin(address, branch)

    def _pinned(self, address: str) -> tuple[str, list[str]]:
        """Find where a repository's address leads, and git's settings to connect to just that host, at the address that
        was checked. Where the environment names a proxy, that one decides. Raises as `FileTransport.get`."""
        scheme = urlparse(address).scheme.lower()
        words = ["-c", "protocol.allow=never", "-c", f"protocol.{scheme}.allow=always"]
        if getproxies().get(scheme):
            return address, words
        asked = f"{address.rstrip('/')}{_REFS}"
        url, place = self.transport.last_hop(asked, may_be_local=True, within_s=INDEX_LIMIT_S)
        found = urlparse(url)
        port = found.port or {"http": 80, "https": 443}[found.scheme]
        pin = f"http.curloptResolve={found.hostname}:{port}:{f'[{place}]' if ':' in place else place}"
        words = ["-c", "protocol.allow=never", "-c", f"protocol.{found.scheme}.allow=always", "-c", pin]
        return url.removesuffix(_REFS) if url.endswith(_REFS) else address, [*words, "-c", "http.followRedirects=false"]

    def _download(self, url: str, archive: Path) -> None:
        """Fetch an archive into a file. Raises `InvalidValueError` for one that is too large, and as
        `FileTransport.get`."""
        with self.transport.get(url, may_be_local=True, within_s=FETCH_LIMIT_S) as reply, archive.open("wb") as file:
            for chunk in reply.chunks():
                if file.tell() + len(chunk) > MAX_ARCHIVE_BYTES:
                    raise InvalidValueError(f"{url} is larger than {MAX_ARCHIVE_BYTES >> 20} MB and was not fetched.")
                file.write(chunk)

    def _run_git(self, words: list[str]) -> None:
        environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, check=False, timeout=FETCH_LIMIT_S, env=environ
            )
        except subprocess.TimeoutExpired as error:
            raise BusyError(f"git took longer than {FETCH_LIMIT_S // 60} minutes; nothing was changed.") from error
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


def _entries(folder: Path) -> list[Path]:
    """List what lies in a folder and is not hidden; links count as what they are called, whatever they lead to."""
    return [one for one in folder.iterdir() if not one.name.startswith(".")] if folder.is_dir() else []


def _move(moves: Sequence[tuple[Path, Path]]) -> None:
    try:
        move_together(moves)
    except OSError as error:
        raise output_error(moves[-1][1].name, moves[-1][1].parent, error) from error


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
    """Tell whether a source lies elsewhere. Raises `InvalidValueError` for an address that is not https, or cannot be
    read."""
    try:
        parts = urlparse(source)
    except ValueError as error:
        raise InvalidValueError(f"{source[:200]!r} is no address that can be read: {error}.") from error
    scheme = parts.scheme.lower()
    if scheme == "https" or (scheme == "http" and parts.hostname in ("127.0.0.1", "localhost")):
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
    try:
        return check_folder_name(name)
    except InvalidValueError as error:
        raise InvalidValueError(f"{source[:200]!r} gives no name for a folder; give one.") from error


def check_folder_name(name: str) -> str:
    """Return `name` if it can be that of an extension's folder. Raises `InvalidValueError`."""
    if not _NAME.fullmatch(check_name(name)):
        raise InvalidValueError(
            f"{name[:80]!r} cannot be the name of an extension: allowed are a to z, digits, blanks, - _ and ., "
            "a letter or digit first."
        )
    return name


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the files of an archive without the one folder around all of them. Raises `InvalidValueError` for an
    archive that is damaged, too large, or whose members are links or lead elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                members = opened.infolist()
                _check_size(len(members), sum(one.file_size for one in members), archive)
                for one in members:
                    is_plain = (one.external_attr >> 16) & 0o170000 in (0, stat.S_IFREG, stat.S_IFDIR)
                    _put(folder, one.filename, archive, opened.open(one) if is_plain else None, one.is_dir())
        else:
            with open_tar(archive) as tape:
                entries = list(tar_members(tape, MAX_FILES, MAX_ARCHIVE_BYTES))
                for entry in entries:  # Python knows filters only since 3.11.4
                    source = tape.extractfile(entry) if entry.isfile() else None
                    _put(folder, entry.name, archive, source, entry.isdir())
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError, OSError, ValueError) as error:
        raise InvalidValueError(f"{archive.name} cannot be unpacked: {error}. Nothing was changed.") from error
    inside = list(folder.iterdir())
    if len(inside) == 1 and inside[0].is_dir() and inside[0].name != "scripts":
        aside = folder.with_name(f"{folder.name}-inner")
        inside[0].replace(aside)
        folder.rmdir()
        aside.replace(folder)


def _put(folder: Path, name: str, archive: Path, source: IO[bytes] | None, is_folder: bool) -> None:
    """Write a member, with no rights or owners of the archive's; `source` None: it has no bytes to read."""
    plain = str(PurePosixPath(name.replace("\\", "/")))
    if is_folder and plain == ".":
        return
    try:
        path = place_inside(folder, plain)
    except InvalidValueError as error:
        raise InvalidValueError(f"{archive.name} is refused: {error}") from error
    if is_folder:
        path.mkdir(parents=True, exist_ok=True)
    elif source is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with source, path.open("wb") as file:
            shutil.copyfileobj(source, file)
    else:
        raise InvalidValueError(f"{archive.name} is refused: {name[:200]!r} is a link or a device.")


def _check_size(files: int, size_bytes: int, source: Path) -> None:
    if files > MAX_FILES or size_bytes > MAX_ARCHIVE_BYTES:
        raise InvalidValueError(f"{source.name} is too large: at most {MAX_FILES} files and 1 GB are taken.")


def read_index(source: str, search: str = "", transport: FileTransport | None = None) -> list[Offer]:
    """Read the entries of an index file (JSON as the reference UI's: {"extensions": [{"name", "url", "description",
    "tags"}]}), from an address or a .json file, of those that hold all words of `search`. Raises `InvalidValueError`,
    and as `FileTransport.get`."""
    try:
        if is_address(source):
            asked = transport or FileTransport()
            with asked.get(source, may_be_local=True, within_s=INDEX_LIMIT_S) as reply:
                data = reply.read(MAX_INDEX_BYTES)
        else:
            data = _index_file(source)
        found: Any = read_json(data)
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


def _index_file(source: str) -> bytes:
    """Read a file of the server's machine, which must be called .json: what others are is not told."""
    path = given_path(source)
    try:
        if path.suffix.lower() != ".json" or not path.is_file() or path.stat().st_size > MAX_INDEX_BYTES:
            raise InvalidValueError(
                f"{source} is no index: give an address that begins with https://, or a .json file of at most "
                f"{MAX_INDEX_BYTES >> 20} MB."
            )
        return path.read_bytes()
    except OSError as error:
        raise InvalidValueError(f"The index {source} cannot be read: {error.strerror}.") from error


def size_bytes(folder: Path) -> int:
    """Measure what an extension takes on disk, its repository included."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())
