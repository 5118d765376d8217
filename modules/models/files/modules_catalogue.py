"""Which files there are that hold one part of a model: a text encoder or a VAE. Imports no torch."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.errors import UnknownNameError
from modules.models.files.pieces import without_later_pieces
from modules.system.model_folders import FilesBelow

SUFFIXES = (".safetensors", ".gguf")
ENCODER_FOLDERS = ("text_encoder", "text_encoders", "CLIP", "clip")
VAE_FOLDERS = ("VAE", "vae")
HIGHEST = 4  # folders above the checkpoint in which folders for parts of models are looked for
MODULE_KEYS = frozenset({"forge_additional_modules"})


@dataclass(frozen=True)
class ModuleInfo:
    """One file. Settings and the API call it by its name, infotexts by the name without suffix."""

    path: Path

    @property
    def name(self) -> str:
        """The file's name with suffix."""
        return self.path.name


class ModuleCatalogue:
    """The files of some folders; of files with one name the first counts."""

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self._folders = tuple(folders)
        self._lock = threading.Lock()
        self._entries: dict[str, ModuleInfo] = {}
        self._below = FilesBelow()
        self.refresh()

    def refresh(self) -> tuple[ModuleInfo, ...]:
        """Look at the folders again."""
        found: dict[str, ModuleInfo] = {}
        for _, files in self._below.of(self._folders, SUFFIXES):
            for path in without_later_pieces(files):
                found.setdefault(path.name, ModuleInfo(path.absolute()))
        with self._lock:
            self._entries = dict(sorted(found.items(), key=lambda item: item[0].lower()))
        return self.entries

    @property
    def faults(self) -> tuple[str, ...]:
        """Folders that could not be read."""
        return self._below.faults

    @property
    def entries(self) -> tuple[ModuleInfo, ...]:
        """All files as of the last refresh, by name."""
        return tuple(self._entries.values())

    def find(self, text: str) -> ModuleInfo | None:
        """The file that `text` names: by its name, its name without suffix, or any path that ends in its name."""
        name = text.strip().replace("\\", "/").rpartition("/")[2]
        if name in self._entries:
            return self._entries[name]
        return next((info for info in self.entries if info.path.stem.lower() == name.lower()), None)

    def paths(self, names: Sequence[str]) -> tuple[Path, ...]:
        """The files of these names. Raises `UnknownNameError` for one that is not there."""
        found = []
        for name in names:
            info = self.find(name)
            if info is None or not info.path.is_file():
                self.refresh()
                info = self.find(name)
            if info is None:
                raise UnknownNameError.of("text encoder or VAE file", name, [entry.name for entry in self.entries])
            found.append(info.path)
        return tuple(dict.fromkeys(found))


def encoder_folders(checkpoint: Path, names: Sequence[str] = ENCODER_FOLDERS) -> Iterator[Path]:
    """Folders for text encoders (or of other `names`), from the nearest to the checkpoint on."""
    for parent in list(checkpoint.absolute().parents)[:HIGHEST]:
        for name in names:
            yield parent / name
