"""The folder of reports: pages and numbers that the program wrote, found again by name and by nothing else."""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from modules.errors import InvalidValueError, UnknownNameError
from modules.system.atomic_files import output_error, write_atomic
from modules.system.file_names import place_inside

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(html|json)")


@dataclass(frozen=True)
class Reports:
    """Reports in `folder`, which is made when the first one is written."""

    folder: Path

    def new_stem(self, type: str) -> str:
        """A name without ending that is not taken: the type and the time."""
        base = f"{type}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
        stem, number = base, 1
        while any(self.folder.glob(f"{stem}.*")):
            number += 1
            stem = f"{base}-{number}"
        return stem

    def write(self, name: str, text: str) -> Path:
        """Write a report, completely or not at all. Raises `OutputError`."""
        path = self._path(name)
        try:
            write_atomic(path, text.encode("utf-8"))
        except OSError as error:
            raise output_error("The report", self.folder, error) from error
        return path

    def names(self) -> list[str]:
        """All reports, the newest first."""
        files = [path for path in self.folder.glob("*.*") if path.is_file() and NAME.fullmatch(path.name)]
        return [path.name for path in sorted(files, key=lambda path: (-path.stat().st_mtime, path.name))]

    def read(self, name: str) -> bytes:
        """The contents of a report. Raises `UnknownNameError`, `InvalidValueError` for what is no name of one."""
        path = self._path(name)
        if not path.is_file() or path.is_symlink():
            raise UnknownNameError(f"There is no report {name!r}. It may have been deleted from {self.folder}.")
        return path.read_bytes()

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise InvalidValueError(
                f"{name[:80]!r} is no name of a report: letters, digits, '.', '-' and '_', ending in .html or .json."
            )
        return place_inside(self.folder, name)
