"""`modules.extensions`: the extensions that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compat.facades.refusal import lazy
from compat.host import host_now
from modules.scripts.extension import Extension as Entry


class Extension:
    """One extension: `name`, `path`, `enabled`, `is_builtin`, `remote`, `branch`, `version`, `commit_hash`."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self.name = self.canonical_name = entry.name
        self.path = str(entry.folder)
        self.enabled = entry.is_enabled
        self.is_builtin = entry.is_built_in
        self.status = ""
        self.can_update = False
        self.remote: str | None = None
        self.branch: str | None = None
        self.commit_hash = ""
        self.commit_date: int | None = None
        self.version = ""
        self.have_info_from_repo = False
        self.metadata = Metadata(self.canonical_name)

    def read_info_from_repo(self) -> None:
        """The address and version where the folder is a clone of git."""
        from compat.store.origin import origin_of

        found = origin_of(self._entry.folder)
        self.remote, self.branch = found.address or None, found.branch or None
        self.commit_hash, self.version = found.commit, found.commit[:8]
        self.have_info_from_repo = True

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("name", "path", "enabled", "is_builtin", "commit_hash", "commit_date", "version", "branch", "remote")
        return {name: getattr(self, name) for name in names}

    def list_files(self, subdir: str, extension: str) -> list[Any]:
        """The files of this suffix in a folder of it."""
        from compat.facades.scripts import ScriptFile

        files = sorted(Path(self.path, subdir).glob(f"*{extension}"))
        return [ScriptFile(self.path, file.name, str(file)) for file in files]


class Metadata:
    """Contents of metadata.ini; unused."""

    def __init__(self, name: str) -> None:
        self.canonical_name = name
        self.requires: list[str] = []


def _all() -> list[Extension]:
    return [Extension(entry) for entry in host_now().scripts.extensions.values()]


def active() -> list[Extension]:
    """List those that are switched on."""
    return [one for one in _all() if one.enabled]


def list_extensions() -> None:
    """Extensions are listed at a start."""


_LAZY: dict[str, Any] = {
    "extensions": _all,
    "extension_paths": lambda: {one.path: one for one in _all()},
    "loaded_extensions": lambda: {one.canonical_name: one for one in _all()},
    "extensions_dir": lambda: str(host_now().paths.extensions_dir),
    "extensions_builtin_dir": lambda: str(host_now().paths.builtin_extensions_dir),
}


def find_extension(filename: str) -> Extension | None:
    """The extension that a file lies in."""
    path = Path(filename).resolve()
    return next((one for one in _all() if path.is_relative_to(Path(one.path).resolve())), None)


__getattr__ = lazy("extensions", _LAZY, {})
