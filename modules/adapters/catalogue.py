"""Which adapter files there are, and what they answer to: name, alias, hash. Reads headers only."""

import logging
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from modules.adapters.adapter_facts import SUFFIXES, Digests, digests_of
from modules.models.detection.families import version_of_family, version_of_metadata
from modules.models.detection.files import detected
from modules.models.files.file_header import header_of
from modules.models.files.header import read_metadata
from modules.system.bounded import ContentError, read_json
from modules.system.model_folders import Listing

log = logging.getLogger(__name__)
SHORT_HASH = 12
RECORDED_HASH = "sshs_model_hash"
EMBEDDED = ("ssmd_cover_images", "modelspec.thumbnail")
"""Metadata that holds images: a JSON list of base64 texts, and a data URI."""


@dataclass(frozen=True)
class AdapterInfo:
    """One file. `name` is the file's stem, `alias` what its author called it. Images in the metadata are left out of
    it: they are large, and only wanted one at a time."""

    name: str
    path: Path
    size_bytes: int
    mtime_ns: int
    metadata: dict[str, str] = field(default_factory=dict, hash=False)
    has_embedded_preview: bool = False

    @property
    def alias(self) -> str:
        """`ss_output_name` of its metadata, else the name."""
        return self.metadata.get("ss_output_name") or self.name

    @property
    def trainer(self) -> str:
        """The name of the program that trained it, as AI Toolkit writes it; "" for others."""
        try:
            return str(read_json(self.metadata.get("software", "{}"))["name"])
        except (ContentError, LookupError, TypeError):
            return ""

    @cached_property
    def version(self) -> str:
        """Word of model cards for the models that it is for, by its metadata or else by its tensors; "" for others."""
        family = None if version_of_metadata(self.metadata) else detected(header_of(self.path)).family
        return version_of_metadata(self.metadata) if family is None else version_of_family(family.label)


class AdapterCatalogue:
    """The adapter files below some folders. Hashes are taken when asked for, once per content."""

    def __init__(self, folders: Iterable[Path], suffixes: tuple[str, ...] = SUFFIXES) -> None:
        self._folders = tuple(folders)
        self._suffixes = suffixes
        self._lock = threading.Lock()
        self._digests: dict[tuple[Path, int, int], Digests] = {}
        self._entries: dict[Path, AdapterInfo] = {}
        self.refresh()

    @property
    def entries(self) -> tuple[AdapterInfo, ...]:
        """All files as of the last refresh, by name."""
        return tuple(sorted(self._entries.values(), key=lambda info: info.name.lower()))

    def refresh(self, listing: Listing | None = None) -> tuple[AdapterInfo, ...]:
        """Look at the folders again, or take what a look at the same folders has just found; only new and changed
        files are opened."""
        found: dict[Path, AdapterInfo] = {}
        for entry in (listing or Listing.of(self._folders)).with_suffix(self._suffixes):
            info = self._describe(entry)
            if info is not None:
                found[info.path] = info
        with self._lock:
            self._entries = found
        return self.entries

    def find(self, text: str) -> AdapterInfo | None:
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
            return self.find_hash(lowered)
        return None

    def find_current(self, text: str) -> AdapterInfo | None:
        """Find an adapter by name as its file is now: the folders are read again for one that is new, changed, or
        missing."""
        info = self.find(text)
        if info is not None and _is_current(info):
            return info
        self.refresh()
        return self.find(text)

    def find_hash(self, digest: str, read_files: bool = True) -> AdapterInfo | None:
        """The file whose hash begins so; with `read_files` hashes that are not known yet are taken."""
        known = next((info for info in self.entries if self._known_hash(info).startswith(digest)), None)
        recorded = (info for info in self.entries if info.metadata.get(RECORDED_HASH, "").startswith(digest))
        known = known or next(recorded, None)  # other programs' infotexts have what the file says of itself
        if known is not None or not read_files:
            return known
        return next((info for info in self.entries if self.hash_of(info).startswith(digest)), None)

    def hash_of(self, info: AdapterInfo) -> str:
        """sha256 of its tensors in hex as the file records it, else taken; "" for a file that cannot be read.

        To show and to search: what a file says about itself may be wrong. `digests` are taken from its bytes.
        """
        known = self._known_hash(info)
        if known:
            return known
        try:
            return self.digests(info).tensors
        except (OSError, ValueError) as error:
            log.warning("%s has no hash: %s", info.path.name, error)
            return ""

    def has_hash(self, info: AdapterInfo, digest: str) -> bool:
        """Whether its hash begins so, the one that was taken or the one that the file records."""
        return self.hash_of(info).startswith(digest) or info.metadata.get(RECORDED_HASH, "").startswith(digest)

    def short_hash_of(self, info: AdapterInfo) -> str:
        """The first 12 digits, as infotexts have them."""
        return self.hash_of(info)[:SHORT_HASH]

    def digests(self, info: AdapterInfo) -> Digests:
        """Taken from the file's bytes, once for a size and time of change. Raises `OSError` and `ValueError`."""
        key = (info.path, info.size_bytes, info.mtime_ns)
        if key not in self._digests:
            self._digests[key] = digests_of(info.path)
        return self._digests[key]

    def _known_hash(self, info: AdapterInfo) -> str:
        """The hash that was taken from the bytes before, else the one that the file itself records; else ""."""
        digests = self._digests.get((info.path, info.size_bytes, info.mtime_ns))
        return digests.tensors if digests else info.metadata.get(RECORDED_HASH, "")

    def _describe(self, entry: os.DirEntry[str]) -> AdapterInfo | None:
        path = Path(entry.path)
        known = self._entries.get(path)
        try:
            stat = entry.stat()
        except OSError:  # gone since the folder was listed
            return None
        if known is not None and (known.size_bytes, known.mtime_ns) == (stat.st_size, stat.st_mtime_ns):
            return known
        metadata = read_metadata(path)
        images = [metadata.pop(key, "") for key in EMBEDDED]
        return AdapterInfo(path.stem, path, stat.st_size, stat.st_mtime_ns, metadata, any(images))


def _is_current(info: AdapterInfo) -> bool:
    try:
        stat = info.path.stat()
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (info.size_bytes, info.mtime_ns)
