"""Which upscaler files there are and what they are called. No torch: the page lists them before any is loaded."""

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from modules.system.model_folders import FilesBelow, as_folders
from modules.upscalers.upscaler_types import KNOWN_NAMES, UPSCALER_TYPES, UpscalerType

SUFFIXES = (".pth", ".pt", ".ckpt", ".safetensors")
USUAL_SCALE = 4  # of nearly all files whose name does not say

_SCALE = re.compile(r"(?<![a-zA-Z0-9])(?:([2-8])x|x([2-8]))(?![a-z0-9])|^([2-8])x|x([2-8])(?=plus|v\d)", re.IGNORECASE)


@dataclass(frozen=True)
class UpscalerInfo:
    """One file. `scale` is what its name says, for lists; the model in the file is what counts."""

    name: str
    path: Path
    type: UpscalerType

    @property
    def scale(self) -> int:
        found = _SCALE.search(self.path.stem)
        return int(next(digit for digit in found.groups() if digit)) if found else USUAL_SCALE


class UpscalerCatalogue:
    """The upscaler files below some folders, which are given by type (`UpscalerType.folder`)."""

    def __init__(self, folders: Mapping[str, Path | Iterable[Path]]) -> None:
        self._folders = {name: as_folders(some) for name, some in folders.items()}
        self._lock = threading.Lock()
        self._entries: dict[str, UpscalerInfo] = {}
        self._below = {upscaler_type.folder: FilesBelow() for upscaler_type in UPSCALER_TYPES}
        self.refresh()

    @property
    def faults(self) -> tuple[str, ...]:
        """Folders that could not be read."""
        return tuple(fault for below in self._below.values() for fault in below.faults)

    def refresh(self) -> tuple[UpscalerInfo, ...]:
        """Look at the folders again. A second file of a name that is taken is called "name (folder)"."""
        found: dict[str, UpscalerInfo] = {}
        seen: set[Path] = set()
        for upscaler_type in UPSCALER_TYPES:
            below = self._below[upscaler_type.folder]
            for folder, files in below.of(self._folders.get(upscaler_type.folder, ()), SUFFIXES):
                for path in files:
                    if path.resolve() in seen:
                        continue
                    seen.add(path.resolve())
                    name = KNOWN_NAMES.get(path.stem, path.stem)
                    if name.lower() in found:
                        name = f"{path.stem} ({path.relative_to(folder.parent).parent.as_posix()})"
                    if name.lower() in found:  # the same place below two roots
                        name = f"{path.stem} ({path.parent})"
                    found[name.lower()] = UpscalerInfo(name, path, upscaler_type)
        with self._lock:
            self._entries = found
        return self.entries

    @property
    def entries(self) -> tuple[UpscalerInfo, ...]:
        """All files as of the last refresh."""
        return tuple(self._entries.values())

    @property
    def names(self) -> tuple[str, ...]:
        """List their names."""
        return tuple(info.name for info in self.entries)

    def find(self, name: str) -> UpscalerInfo | None:
        """The file of this name, in any case."""
        return self._entries.get(name.lower())
