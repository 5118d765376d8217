"""Which network files there are, and what they answer to: name, alias, hash. Reads headers only."""

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from modules.networks.network_file import SUFFIXES, network_hash, read_metadata

log = logging.getLogger(__name__)
SHORT_HASH = 12


@dataclass(frozen=True)
class NetworkInfo:
    """One file. `name` is the file's stem, `alias` what its author called it."""

    name: str
    path: Path
    size_bytes: int
    mtime_ns: int
    metadata: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def alias(self) -> str:
        """`ss_output_name` of its metadata, else the name."""
        return self.metadata.get("ss_output_name") or self.name


class NetworkCatalogue:
    """The network files below some folders. Hashes are taken when asked for, once per content."""

    def __init__(self, folders: Iterable[Path], suffixes: tuple[str, ...] = SUFFIXES) -> None:
        self._folders = tuple(folders)
        self._suffixes = suffixes
        self._lock = threading.Lock()
        self._hashes: dict[tuple[Path, int, int], str] = {}
        self._entries: dict[Path, NetworkInfo] = {}
        self.refresh()

    @property
    def entries(self) -> tuple[NetworkInfo, ...]:
        """All files as of the last refresh, by name."""
        return tuple(sorted(self._entries.values(), key=lambda info: info.name.lower()))

    def refresh(self) -> tuple[NetworkInfo, ...]:
        """Look at the folders again; only new and changed files are opened."""
        found: dict[Path, NetworkInfo] = {}
        for folder in self._folders:
            for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
                if path.suffix.lower() in self._suffixes and path.is_file():
                    found[path] = self._describe(path)
        with self._lock:
            self._entries = found
        return self.entries

    def find(self, text: str) -> NetworkInfo | None:
        """The file of this name, else of this alias, else whose hash begins so (8 digits at least)."""
        entries = self.entries
        by_name = next((info for info in entries if info.name == text), None)
        by_alias = next((info for info in entries if info.alias == text), None)
        if by_name or by_alias:
            return by_name or by_alias
        lowered = text.lower()
        for info in entries:
            if lowered in (info.name.lower(), info.alias.lower()):
                return info
        if len(text) >= 8 and all(digit in "0123456789abcdef" for digit in lowered):
            return next((info for info in entries if self.hash_of(info).startswith(lowered)), None)
        return None

    def hash_of(self, info: NetworkInfo) -> str:
        """sha256 of its tensors in hex, or "" for a file that cannot be read."""
        recorded = info.metadata.get("sshs_model_hash")
        if recorded:
            return recorded
        key = (info.path, info.size_bytes, info.mtime_ns)
        if key not in self._hashes:
            try:
                self._hashes[key] = network_hash(info.path)
            except (OSError, ValueError) as error:
                log.warning("%s has no hash: %s", info.path.name, error)
                return ""
        return self._hashes[key]

    def short_hash_of(self, info: NetworkInfo) -> str:
        """The first 12 digits, as infotexts have them."""
        return self.hash_of(info)[:SHORT_HASH]

    def _describe(self, path: Path) -> NetworkInfo:
        stat = path.stat()
        known = self._entries.get(path)
        if known is not None and (known.size_bytes, known.mtime_ns) == (stat.st_size, stat.st_mtime_ns):
            return known
        return NetworkInfo(path.stem, path, stat.st_size, stat.st_mtime_ns, read_metadata(path))
