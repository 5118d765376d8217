"""Which VAE files there are, and which of them a checkpoint is used with. Imports no torch."""

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from modules.errors import CheckpointError, UnknownNameError
from modules.models.files.catalogue import CheckpointInfo, HashCache
from modules.models.files.diffusers_folder import sibling_file
from modules.settings.values import Settings
from modules.system.bounded import read_json_file
from modules.system.model_folders import FilesBelow

log = logging.getLogger(__name__)

VAE_SUFFIXES = (".safetensors", ".gguf", ".ckpt", ".pt")
AUTOMATIC, BUILT_IN = "Automatic", "None"
VAE_KEYS = frozenset({"sd_vae", "sd_vae_overrides_per_model_preferences"})


@dataclass(frozen=True)
class VaeInfo:
    """One VAE file. `sha256` is None until it was computed once."""

    path: Path
    size_bytes: int
    mtime_ns: int
    sha256: str | None = None

    @property
    def name(self) -> str:
        """The file's name with suffix: what settings and infotexts call it."""
        return self.path.name

    @property
    def shorthash(self) -> str | None:
        """The first 10 hex digits of the sha256."""
        return self.sha256[:10] if self.sha256 else None

    def is_same_file(self, other: "VaeInfo | None") -> bool:
        """Whether `other` is this file as it was when this was looked up."""
        return other is not None and (self.path, self.mtime_ns) == (other.path, other.mtime_ns)


@dataclass(frozen=True)
class VaeOptions:
    """The settings that ask for a VAE: "Automatic", "None" (the one inside the checkpoint) or a file's name.
    `overrides`: a chosen one goes before what the checkpoint itself prefers."""

    name: str = AUTOMATIC
    overrides: bool = True

    @classmethod
    def of(cls, settings: Settings) -> "VaeOptions":
        """Read from the settings of a job."""
        return cls(settings.vae.sd_vae or AUTOMATIC, settings.vae.sd_vae_overrides_per_model_preferences)


class VaeCatalogue:
    """The VAE files of some folders, and those named NAME.vae.* in the checkpoints' folders."""

    def __init__(
        self,
        folders: Iterable[Path] = (),
        checkpoint_folders: Iterable[Path] = (),
        cache: HashCache | None = None,
        fixed: Path | None = None,
    ) -> None:
        """`fixed` is used with every checkpoint, whatever else is wished (--vae-path); `CheckpointError` if it is not
        there. Without `cache` no hashes are computed."""
        self._folders = tuple(folders)
        self._checkpoint_folders = tuple(checkpoint_folders)
        self._cache = cache
        self._fixed = fixed
        self._lock = threading.Lock()
        self._entries: dict[str, VaeInfo] = {}
        self._below = FilesBelow()
        self._described_fixed()
        self.refresh()

    def refresh(self) -> tuple[VaeInfo, ...]:
        """Look at the folders again. Of files with one name the first is taken, VAE folders before others."""
        found: dict[str, VaeInfo] = {}
        for path in self._files():
            found.setdefault(path.name, self._describe(path))
        with self._lock:
            self._entries = dict(sorted(found.items(), key=lambda item: item[0].lower()))
        return self.entries

    @property
    def entries(self) -> tuple[VaeInfo, ...]:
        """All VAE files as of the last refresh, by name."""
        return tuple(self._entries.values())

    def choices(self) -> list[str]:
        """Return the values that the setting may have."""
        return [AUTOMATIC, BUILT_IN, *(info.name for info in self.entries)]

    def choose(self, options: VaeOptions, checkpoint: CheckpointInfo) -> VaeInfo | None:
        """The file to use with a checkpoint, with its hash if that is known; None means the VAE inside it.

        In this order: the fixed one, a chosen one that overrides, what NAME.json next to the checkpoint prefers, a
        file whose name begins with the checkpoint's, the chosen one. Raises `UnknownNameError` for a chosen name that
        no file has.
        """
        fixed = self._described_fixed()
        if fixed is not None:
            return self._with_known_hash(fixed)
        is_chosen = options.name != AUTOMATIC
        preferred = _preference(checkpoint)
        if is_chosen and options.overrides:
            name: str | None = options.name
        elif preferred == BUILT_IN or preferred in self._entries:
            name = preferred
        else:
            name = self._near(checkpoint) or (options.name if is_chosen else BUILT_IN)
        return None if name in (None, BUILT_IN) else self._with_known_hash(self._get(str(name)))

    def _described_fixed(self) -> VaeInfo | None:
        if self._fixed is not None and not self._fixed.is_file():
            raise CheckpointError(f"{self._fixed}: no such VAE file. Check the path given with --vae-path.")
        return self._describe(self._fixed) if self._fixed is not None else None

    def _get(self, name: str) -> VaeInfo:
        info = self._entries.get(name)
        if info is None or not info.path.is_file():
            raise UnknownNameError.of("VAE", name, [choice for choice in self.choices() if choice != name])
        return self._describe(info.path)

    def _near(self, checkpoint: CheckpointInfo) -> str | None:
        """A file named NAME.* after the checkpoint, else one whose name begins with NAME."""
        stem = checkpoint.stem
        names = [name for name in self._entries if name.startswith(stem)]
        exact = [name for name in names if name.startswith(f"{stem}.")]
        return next(iter(exact or names), None)

    def hashed(self, info: VaeInfo) -> VaeInfo:
        """The file with its sha256, taken now if nobody did before; as it is where no hashes are wanted."""
        if info.sha256 is not None or self._cache is None:
            return info
        try:
            return replace(info, sha256=self._cache.sha256(info.path))
        except OSError as error:
            log.warning("%s has no hash: it cannot be read (%s).", info.name, error)
            return info

    def _with_known_hash(self, info: VaeInfo) -> VaeInfo:
        known = self._cache.lookup(info.path, info.size_bytes, info.mtime_ns) if self._cache is not None else None
        return replace(info, sha256=known)

    def _files(self) -> Iterator[Path]:
        for folder, files in self._below.of((*self._folders, *self._checkpoint_folders), VAE_SUFFIXES):
            for path in files:
                if folder in self._folders or ".vae." in path.name:
                    yield path

    @property
    def faults(self) -> tuple[str, ...]:
        """Folders that could not be read."""
        return self._below.faults

    @staticmethod
    def _describe(path: Path) -> VaeInfo:
        stat = path.stat()
        return VaeInfo(path.absolute(), stat.st_size, stat.st_mtime_ns)


def _preference(checkpoint: CheckpointInfo) -> str | None:
    """The `vae` in the notes next to a checkpoint (NAME.json); None where there is none, or "Automatic"."""
    path = sibling_file(checkpoint.path, ".json")
    try:
        notes = read_json_file(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s); what it says of the VAE is ignored.", path.name, error)
        return None
    name = notes.get("vae") if isinstance(notes, dict) else None
    return name if isinstance(name, str) and name not in ("", AUTOMATIC) else None
