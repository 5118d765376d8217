"""A downloaded archive of the program (.zip, .tar.gz): checked, unpacked, put in place, and taken out again.

Standard library only. Nothing is written outside of the program's folder, and none of the user's files is touched.
"""

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from modules.errors import InvalidValueError
from modules.system.atomic_files import write_atomic
from modules.system.bounded import open_tar, tar_members
from modules.system.file_names import place_inside

MAX_BYTES = 2_000_000_000
MAX_FILES = 50_000
NEEDED = ("launch.py", "webui.py", "requirements.txt", "modules/version.py")
OWN_FOLDERS = ("modules", "compat", "extensions-builtin", "configs", "docs", "recipes", "benchmarks", "tests")
"""Of the program alone: what an archive has not is removed from them."""
OF_THE_USER = frozenset(
    (
        *(".git", ".venv", "outputs", "cache", "log", "tmp", "backups", "extensions", "embeddings", "training-data"),
        *("config.json", "ui-config.json", "styles.csv", "users.json", "user.css", "params.txt", "model-folders.json"),
        *("webui-user.sh", "webui-user.bat", "tokens.txt"),
        *("jobs.sqlite", "history.sqlite", "server.lock"),
    )
)
"""Never written, whatever an archive holds, in whatever case: Windows and macOS know no other."""
REPLACED = "program"  # folder of a backup: files as they were


@dataclass(frozen=True)
class Member:
    """A file in an archive: its place below the program's folder, and how to read it."""

    path: PurePosixPath
    size: int
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, folder: Path) -> list[str]:
    """Unpack the program's files of an archive into a new folder; returns their places.

    Raises `InvalidValueError` for what is no archive of this program, for damaged ones, for names or links that lead
    out of it, and for a folder that is there; then nothing is left of what was unpacked.
    """
    made = False
    try:
        with ExitStack() as opened:
            members = _program_files(list(_members(archive, opened)), archive)
            folder.mkdir()
            made = True
            for member in members:
                target = folder / member.path
                target.parent.mkdir(parents=True, exist_ok=True)
                with member.open() as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError, OSError, ValueError) as error:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise InvalidValueError(f"{archive} cannot be unpacked: {error}. Download it again.") from error
    return [str(member.path) for member in members]


def _members(archive: Path, opened: ExitStack) -> Iterator[Member]:
    if zipfile.is_zipfile(archive):
        pack = opened.enter_context(zipfile.ZipFile(archive))
        for info in pack.infolist():
            if (info.external_attr >> 16) & 0o170000 == 0o120000:
                raise InvalidValueError(f"{archive.name} is refused: {info.filename} is a link.")
            if not info.is_dir():
                yield Member(_place(info.filename, archive), info.file_size, partial(pack.open, info))
        return
    try:
        tape = opened.enter_context(open_tar(archive))
        for entry in list(tar_members(tape, MAX_FILES, MAX_BYTES)):  # all are counted before a name is checked
            if not (entry.isfile() or entry.isdir()):
                raise InvalidValueError(f"{archive.name} is refused: {entry.name} is a link or no file.")
            if entry.isfile():
                yield Member(_place(entry.name, archive), entry.size, partial(_tape_file, tape, entry))
    except tarfile.ReadError as error:
        raise InvalidValueError(f"{archive} is no .zip and no .tar.gz file ({error}).") from error


def _tape_file(tape: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    found = tape.extractfile(entry)
    assert found is not None, "only files are read"
    return found


def _place(name: str, archive: Path) -> PurePosixPath:
    """Where a member goes. Raises `InvalidValueError` for a name that leads out of the folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    try:
        place_inside(Path(), str(path))
    except InvalidValueError as error:
        raise InvalidValueError(f"{archive.name} is refused: {error}") from error
    return path


def _program_files(members: list[Member], archive: Path) -> list[Member]:
    """Without the folder around them, and without what is the user's."""
    if len(members) > MAX_FILES or sum(member.size for member in members) > MAX_BYTES:
        raise InvalidValueError(f"{archive.name} is refused: it unpacks to more than {MAX_BYTES // 1_000_000} MB.")
    tops = {member.path.parts[0] for member in members}
    if len(tops) == 1 and all(len(member.path.parts) > 1 for member in members):
        members = [Member(PurePosixPath(*member.path.parts[1:]), member.size, member.open) for member in members]
    found = {str(member.path) for member in members}
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise InvalidValueError(f"{archive.name} is no archive of Featherweight: {', '.join(missing)} is not in it.")
    return [member for member in members if not _is_of_the_user(member.path.parts[0])]


def _is_of_the_user(top: str) -> bool:
    return top.casefold() in OF_THE_USER or "~" in top  # GIT~1 is .git on Windows


def changes_of(new: Path, names: list[str], root: Path) -> dict[str, list[str]]:
    """List what `put_in_place` will do: files that are `replaced`, `added` and `removed`. Raises OSError."""
    there = {name for name in names if (root / name).exists()}
    return {
        "replaced": sorted(name for name in there if (root / name).read_bytes() != (new / name).read_bytes()),
        "added": sorted(set(names) - there),
        "removed": sorted(_stale(root, set(names))),
    }


def keep(changes: Mapping[str, list[str]], root: Path, backup: Path) -> None:
    """Copy what will be replaced or removed into the backup. Raises OSError."""
    for name in (*changes["replaced"], *changes["removed"]):
        kept = backup / REPLACED / name
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, kept)


def put_in_place(changes: Mapping[str, list[str]], new: Path, root: Path) -> None:
    """Replace, add and remove files. Raises OSError on the way; `take_out` puts back what was done."""
    for name in (*changes["added"], *changes["replaced"]):
        _put(new / name, root / name)
    for name in changes["removed"]:
        (root / name).unlink()


def take_out(changes: Mapping[str, list[str]], root: Path, backup: Path) -> None:
    """The way back of `put_in_place`, also of one that was cut off. Raises OSError."""
    for name in (*changes["replaced"], *changes["removed"]):
        _put(backup / REPLACED / name, root / name)
    for name in changes["added"]:
        (root / name).unlink(missing_ok=True)


def _put(source: Path, target: Path) -> None:
    """Whole or not at all; a file that is replaced keeps its permissions."""
    mode = target.stat().st_mode & 0o777 if target.exists() else None
    write_atomic(target, source.read_bytes(), mode)


def _stale(root: Path, names: set[str]) -> Iterator[str]:
    """Files of the program's own folders that the new version has not."""
    for folder in OWN_FOLDERS:
        if not any(name.startswith(f"{folder}/") for name in names):
            continue  # an archive without tests, for instance
        for path in (root / folder).rglob("*"):
            name = path.relative_to(root).as_posix()
            if path.is_file() and "__pycache__" not in path.parts and name not in names:
                yield name
