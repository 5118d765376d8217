"""Getting models: what a text means, what is there, and the file into the folder where it belongs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from modules.downloads.addresses import clean_name
from modules.downloads.download import (
    Claims,
    Downloaded,
    OnProgress,
    Unfinished,
    download,
    unfinished_in,
)
from modules.downloads.known import KnownModel, entries_for, known_models, source_named
from modules.downloads.parts import STORED_MEANWHILE, discard
from modules.downloads.remote_file import RemoteFile, look, read_header
from modules.downloads.transport import FileTransport
from modules.downloads.verdict import Verdict, describe, judge
from modules.errors import CheckpointError, InvalidValueError, UnknownNameError
from modules.models.detection.files import Detected, detected
from modules.models.detection.kinds import FOLDERS, Kind
from modules.models.files.header import Header
from modules.system.file_names import place_inside
from modules.system.model_folders import files_below
from modules.system.paths import Paths


def model_folders(paths: Paths) -> dict[str, tuple[Path, ...]]:
    """Return the folders of model files by the name of the first. One of several kinds stands at the first of these."""
    others = (Kind.CONTROLNET, Kind.PREPROCESSOR, Kind.IMAGE_ENCODER, Kind.DETECTOR, Kind.SEGMENTER, Kind.BACKGROUND)
    return {
        FOLDERS[Kind.CHECKPOINT]: paths.checkpoint_dirs,
        FOLDERS[Kind.VAE]: paths.vae_dirs,
        FOLDERS[Kind.TINY_VAE]: paths.tiny_vae_dirs,
        FOLDERS[Kind.TEXT_ENCODER]: paths.module_dirs,
        FOLDERS[Kind.LORA]: paths.lora_dirs,
        FOLDERS[Kind.EMBEDDING]: paths.embeddings_dirs,
        FOLDERS[Kind.HYPERNETWORK]: paths.hypernetwork_dirs,
        FOLDERS[Kind.UPSCALER]: tuple(paths.upscaler_dirs.values()),
        **{FOLDERS[kind]: (paths.models_dir / FOLDERS[kind],) for kind in others},
        **{name: (folder,) for name, folder in paths.face_dirs.items()},
    }


@dataclass(frozen=True)
class Found:
    """A file before it is downloaded: what its server and its header say. `parts`: what else it needs, of the list."""

    remote: RemoteFile
    header: Header
    kind: Detected
    name: str
    line: str
    parts: tuple[KnownModel, ...] = ()


@dataclass(frozen=True)
class DownloadRequest:
    """Request of a user. `name` and `folder` "": by the source, and by what the file is. `storage` stands in records
    of earlier versions, which stored checkpoints in 8 bits meanwhile: all but "" is refused."""

    source: str
    name: str = ""
    folder: str = ""
    allows_pickles: bool = False
    storage: str = ""


Remember = Callable[[Path, str, str], object]
"""(file, name of a fact, fact): keeps what was found out about a file."""


def _forgets(path: Path, name: str, value: str) -> None:
    """Keeps nothing."""


@dataclass(frozen=True)
class Downloads:
    """Gets files into the model folders of `paths`; threads may share it. `remember` keeps the hash ("sha256") and the
    address ("source") of what came; `on_done` is called when a file is there."""

    paths: Paths
    transport: FileTransport
    claims: Claims = field(default_factory=Claims)
    sleep: Callable[[float], None] = time.sleep
    remember: Remember = _forgets
    on_done: Callable[[], object] = lambda: None

    @property
    def known(self) -> Mapping[str, KnownModel]:
        """The list that ships."""
        return known_models(self.paths.root / "configs")

    @property
    def folders(self) -> Mapping[str, Path]:
        """Where files go, by the name of their folder."""
        return {name: folders[0] for name, folders in model_folders(self.paths).items()}

    def checked(self, request: DownloadRequest) -> DownloadRequest:
        """The request, if its address, name and folder can be meant. Asks no server; raises as `find`."""
        source = source_named(request.source, self.known)
        if request.name or source.file:
            clean_name(request.name or source.file, request.allows_pickles)
        self._folder(request.folder)
        return request

    def find(self, request: DownloadRequest) -> Found:
        """Find what would come, from the file's first bytes and its header. Raises what is wrong with it or its
        address."""
        if request.storage:
            raise InvalidValueError(STORED_MEANWHILE)
        known = self.known
        remote = look(source_named(request.source, known), self.transport)
        name = clean_name(request.name or remote.name, request.allows_pickles)
        header = read_header(remote, self.transport)
        if header.format == "pickle" and not request.allows_pickles:
            raise InvalidValueError(
                f"{name} is called as if it were none and is a pickle, which can hold code. Get it elsewhere; or allow "
                "pickles for this file: it is read without running anything in it."
            )
        kind = detected(header)
        if kind.refusal:
            raise CheckpointError(f"{remote.source.label} {kind.refusal}")
        if self._folder(request.folder):
            kind = replace(kind, folder=request.folder)
        entry = known.get(request.source.strip().lower())
        if entry is not None and not remote.sha256:
            remote = replace(remote, sha256=entry.sha256)
        parts = tuple(known[part] for part in entry.parts) if entry else entries_for(kind.missing, known)
        return Found(remote, header, kind, name, describe(remote, header, kind), parts)

    def _folder(self, name: str) -> str:
        if name and name not in self.folders:
            raise UnknownNameError.of("folder", name, self.folders)
        return name

    def judged(self, found: Found) -> Verdict:
        """Whether and how it fits this machine, see `verdict.judge`; takes some seconds."""
        return judge(found.remote, found.header, found.kind, self.paths.root, ("--data-dir", str(self.paths.data_dir)))

    def get(
        self,
        request: DownloadRequest,
        on_progress: OnProgress,
        on_found: Callable[[Found], object] = lambda found: None,
    ) -> Downloaded:
        """Download the file into its folder, see `download`. A file with the same bytes which is in any folder of its
        kind already, under whatever name, is given back in its place. `on_found` receives what will come."""
        found = self.find(request)
        on_found(found)
        done = self.same_file(found)
        if done is None:
            done = download(
                found.remote,
                self.folders[found.kind.folder],
                found.name,
                self.transport,
                self.claims,
                on_progress,
                self.sleep,
            )
        self.remember(done.path, "sha256", done.sha256)
        self.remember(done.path, "source", found.remote.source.url)
        self.on_done()
        return done

    def same_file(self, found: Found) -> Downloaded | None:
        """A file that is here with the announced bytes; None where there is none, or nothing was announced. Only files
        of its size are read."""
        remote = found.remote
        if not remote.sha256:
            return None
        suffix = Path(found.name).suffix
        for path in sorted(path for path in files_below(self.folders[found.kind.folder]) if path.suffix == suffix):
            if path.name.startswith(".") or not path.is_file() or path.stat().st_size != remote.size_bytes:
                continue
            with path.open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() == remote.sha256:
                    return Downloaded(path, remote.size_bytes, remote.sha256, was_there=True)
        return None

    def unfinished(self) -> list[tuple[str, Unfinished]]:
        """List what was begun and nobody gets now, with the name of its folder."""
        return [
            (name, part)
            for name, folder in self.folders.items()
            for part in unfinished_in(folder)
            if not self.claims.has(folder / part.name)
        ]

    def begun(self, request: DownloadRequest) -> list[tuple[str, Unfinished]]:
        """List what earlier tries of a request have left of these."""
        source = source_named(request.source, self.known)
        name = request.name or source.file
        wanted = clean_name(name, allows_pickles=True) if name else ""
        return [
            (folder, part)
            for folder, part in self.unfinished()
            if part.url == source.url
            and request.folder in ("", folder)
            and (wanted in ("", part.name) or request.storage)
        ]

    def discard(self, folder: str, name: str) -> None:
        """Delete what came of a file that is not wanted any more. Raises `BusyError` while it is being downloaded."""
        if folder not in self.folders:
            raise UnknownNameError.of("folder", folder, self.folders)
        target = place_inside(self.folders[folder], clean_name(name, allows_pickles=True))
        with self.claims.claim(target):
            discard(target)
