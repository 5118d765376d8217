"""Files for weights that no other file holds as they are needed: one a weight, named by its content.

The name is the SHA-256 of dtype, shape and bytes, so the same weight is written once whatever model, run or program
wants it, and two models cannot mix. A name alone is never trusted: a file that is there already is compared with what
it should hold before it is used, and must not have changed since whenever it is read. Files are written in addition
to their name and renamed, so that half a file never has a name.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from modules.errors import CheckpointError, OutputError
from modules.memory.streaming.source import Runs, as_bytes, read_file
from modules.system.atomic_files import output_error

log = logging.getLogger(__name__)

SUFFIX = ".weight"
DEFAULT_QUOTA_BYTES = 50 << 30
COMPARED_BYTES = 1 << 22  # at a time


@dataclass(frozen=True)
class BlobSource:
    """A weight in a `BlobStore`."""

    store: BlobStore
    name: str
    dtype: torch.dtype
    shape: torch.Size

    def read_into(self, target: Tensor) -> None:
        self.read_runs(Runs(0, target.numel()), target)

    def read_runs(self, runs: Runs, target: Tensor) -> None:
        self.store.read_into(self, runs, target)


class BlobStore:
    """A folder of such files. Safe for threads, and for several programs that share the folder."""

    def __init__(self, folder: Path, quota_bytes: int = DEFAULT_QUOTA_BYTES) -> None:
        """`quota_bytes`: what the folder may hold; the files that were not used for longest make room."""
        self.folder = folder
        self.quota_bytes = quota_bytes
        self._used: dict[str, tuple[int, int]] = {}  # by name: size and time of change
        self._users: Counter[str] = Counter()
        self._held: int | None = None
        self._lock = threading.Lock()

    def keep(self, tensor: Tensor) -> BlobSource:
        """Have a tensor's bytes in the folder; nothing is written if they are there already.

        Raises `OutputError` where they cannot be written, or the quota does not allow it.
        """
        tensor = tensor.detach().cpu().contiguous()
        data = as_bytes(tensor)
        source = BlobSource(self, _name_of(tensor.dtype, tensor.shape, data), tensor.dtype, tensor.shape)
        path = self._path(source.name)
        with self._lock:
            try:
                if not _holds(path, data):
                    self._make_room(data.numel())
                    _write(path, data)
                    self._held = (self._held or 0) + data.numel()
                stat = path.stat()
                os.utime(path, ns=(time.time_ns(), stat.st_mtime_ns))  # it was used now: others make room first
            except OSError as error:
                raise output_error("A weight that is streamed from disk", self.folder, error) from error
            self._used[source.name] = (stat.st_size, stat.st_mtime_ns)
            self._users[source.name] += 1
        return source

    def release(self, source: BlobSource) -> None:
        """Release what `keep` gave: its file may make room for others."""
        with self._lock:
            self._users[source.name] -= 1
            if self._users[source.name] <= 0:
                del self._users[source.name]
                self._used.pop(source.name, None)

    def read_into(self, source: BlobSource, runs: Runs, target: Tensor) -> None:
        """Bytes of a weight; raises `CheckpointError` for a file that has gone, or is not what its name says."""
        path = self._path(source.name)
        try:
            with path.open("rb", buffering=0) as file:
                stat = os.fstat(file.fileno())
                if (stat.st_size, stat.st_mtime_ns) != self._used[source.name]:
                    raise CheckpointError(self._complaint(path, "has changed since it was written"))
                if not read_file(file, 0, runs, target):
                    raise CheckpointError(self._complaint(path, "ends too early"))
        except FileNotFoundError as error:
            raise CheckpointError(self._complaint(path, "is missing")) from error
        except OSError as error:
            raise CheckpointError(self._complaint(path, f"cannot be read ({error.strerror})")) from error

    def files(self) -> list[tuple[Path, int, int]]:
        """Path, bytes, and time of the last use in nanoseconds of every file, the longest unused first."""
        found = []
        for path in self.folder.glob(f"??/*{SUFFIX}"):
            try:
                stat = path.stat()
            except FileNotFoundError:  # another program made room
                continue
            found.append((path, stat.st_size, stat.st_atime_ns))
        return sorted(found, key=lambda item: item[2])

    def clean(self, keep_bytes: int = 0) -> tuple[int, int]:
        """Delete files until the folder holds at most `keep_bytes`, never those that this store uses; returns how many
        and their bytes. What writers left behind that were killed goes too."""
        if keep_bytes == 0:
            for path in self.folder.glob(f"??/*{SUFFIX}.*.tmp"):
                path.unlink(missing_ok=True)
        files = self.files()
        held, count, freed = sum(size for _, size, _ in files), 0, 0
        for path, size, _ in files:
            if held - freed <= keep_bytes:
                break
            if path.name.removesuffix(SUFFIX) in self._used:
                continue
            path.unlink(missing_ok=True)
            count, freed = count + 1, freed + size
        return count, freed

    def _make_room(self, needed: int) -> None:
        if self._held is None or self._held + needed > self.quota_bytes:
            self._held = sum(size for _, size, _ in self.files())
        if self._held + needed <= self.quota_bytes:
            return
        count, freed = self.clean(max(0, self.quota_bytes - needed))
        self._held -= freed
        log.info("Made room in %s: %d files, %.0f MB.", self.folder, count, freed / 1e6)
        if self._held + needed > self.quota_bytes:
            raise OutputError(
                f"Weights streamed from disk need more than the {self.quota_bytes / 1e9:.1f} GB that {self.folder} "
                "may hold. Raise the limit in Settings > Optimizations, or choose another place with --offload-dir."
            )

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / f"{name}{SUFFIX}"

    def _complaint(self, path: Path, what: str) -> str:
        return (
            f"The file {path.name[:12]}… in {self.folder} {what}, and weights are streamed from it. "
            "The next image loads the checkpoint again, which writes it again."
        )


def _holds(path: Path, data: Tensor) -> bool:
    """Whether a file is there and holds exactly these bytes."""
    view = memoryview(data.numpy())  # type: ignore[arg-type] # numpy arrays are buffers
    try:
        with path.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != view.nbytes:
                return False
            while view:
                part = file.read(min(len(view), COMPARED_BYTES))
                if part != view[: len(part)] or not part:
                    return False
                view = view[len(part) :]
    except FileNotFoundError:
        return False
    return True


def _write(path: Path, data: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(memoryview(data.numpy()))  # type: ignore[arg-type]
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _name_of(dtype: torch.dtype, shape: torch.Size, data: Tensor) -> str:
    digest = hashlib.sha256(f"{dtype}{list(shape)}".encode())
    digest.update(memoryview(data.numpy()))  # type: ignore[arg-type]
    return digest.hexdigest()
