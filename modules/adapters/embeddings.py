"""Textual inversion embeddings on disk (Gal et al. 2022, arXiv:2208.01618): vectors that a word in a prompt stands for.

Read from .pt and .bin (weights only), .safetensors, and images that carry one, see `image_embedding`.
"""

import hashlib
import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modules.adapters.adapter_facts import EMBEDDING_IMAGE_SUFFIXES, EMBEDDING_SUFFIXES, AdapterError
from modules.adapters.adapter_file import read_pickle, read_tensors
from modules.adapters.image_embedding import read_image
from modules.system.model_folders import FilesBelow, as_folders

log = logging.getLogger(__name__)
SHORT_HASH = 12
MAX_VECTORS = 75


@dataclass(frozen=True)
class Embedding:
    """One embedding: for each text encoder's width its vectors [n, width], float32.

    `bundled_in`: the adapter whose file brought it, by its name in the prompt.
    """

    name: str
    file_hash: str
    vectors: Mapping[int, Tensor] = field(hash=False)
    step: int | None = None
    checkpoint_name: str | None = None
    checkpoint_hash: str | None = None
    bundled_in: str = ""

    @property
    def count(self) -> int:
        """How many token positions it fills."""
        return next(iter(self.vectors.values())).shape[0]

    @property
    def short_hash(self) -> str:
        """The first 12 digits, as infotexts have them; of a bundled one they have the adapter's name in their place."""
        return self.bundled_in or self.file_hash[:SHORT_HASH]


class EmbeddingStore:
    """The embeddings below some folders; read again when something in them changes. Of two with one name, that of the
    first folder counts."""

    def __init__(self, folders: Path | Iterable[Path] | None) -> None:
        self._folders = as_folders(folders)
        self._lock = threading.Lock()
        self._below = FilesBelow()
        self._seen: dict[Path, tuple[int, int]] = {}
        self._loaded: dict[Path, Embedding] = {}
        self._broken: dict[Path, str] = {}

    def refresh(self) -> None:
        """Look at the folders; only new and changed files are read."""
        with self._lock:
            found = {path: _stamp(path) for path in self._files()}
            for path in set(self._seen) - set(found):
                self._loaded.pop(path, None)
                self._broken.pop(path, None)
            for path, stamp in found.items():
                if self._seen.get(path) != stamp:
                    self._read(path)
            self._seen = found

    def usable(self, widths: Iterable[int]) -> dict[str, Embedding]:
        """Return by name those with vectors for all of a model's text encoders."""
        wanted = set(widths)
        later_first = sorted(self._loaded.items(), key=lambda item: self._place_of(item[0]), reverse=True)
        return {item.name: item for _, item in later_first if wanted <= set(item.vectors)}

    def skipped(self, widths: Iterable[int]) -> dict[str, str]:
        """Return by name the reason why the others cannot be used with such a model."""
        wanted = set(widths)
        reasons = {path.stem: reason for path, reason in self._broken.items()}
        for item in self._loaded.values():
            if not wanted <= set(item.vectors):
                has, needs = sorted(item.vectors), sorted(wanted)
                reasons[item.name] = f"its vectors are {has} values wide, the text encoders of this model need {needs}"
        return reasons

    @property
    def all(self) -> tuple[Embedding, ...]:
        """Every embedding that could be read."""
        return tuple(self._loaded.values())

    def _files(self) -> list[Path]:
        found = self._below.of(self._folders, (*EMBEDDING_SUFFIXES, *EMBEDDING_IMAGE_SUFFIXES))
        return [path for _, files in found for path in sorted(files) if ".preview." not in path.name]

    def _place_of(self, path: Path) -> int:
        """The number of the folder that a file lies in."""
        return next((number for number, folder in enumerate(self._folders) if path.is_relative_to(folder)), 0)

    def _read(self, path: Path) -> None:
        self._loaded.pop(path, None)
        self._broken.pop(path, None)
        try:
            embedding = read_embedding(path)
        except AdapterError as error:
            self._broken[path] = str(error)
            log.warning("%s", error)
            return
        if embedding is not None:
            self._loaded[path] = embedding
        elif not _is_preview(path):
            self._broken[path] = (
                f"{path.name}: an image with no embedding in it, neither in a text chunk nor in its pixels."
            )


def read_embedding(path: Path) -> Embedding | None:
    """One file; None for an image without an embedding. Raises `AdapterError`."""
    suffix = path.suffix.lower()
    if suffix in EMBEDDING_IMAGE_SUFFIXES:
        data = read_image(path, with_pixels=not _is_preview(path))
        if data is None:
            return None
    elif suffix == ".safetensors":
        data = dict(read_tensors(path))
    else:
        data = _from_pickle(path)
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise AdapterError(f"{path.name}: cannot be read ({error.strerror}).") from error
    name = str(data.get("name") or path.stem) if suffix in EMBEDDING_IMAGE_SUFFIXES else path.stem
    return Embedding(
        name=name,
        file_hash=digest,
        vectors=vectors_of(path.name, data),
        step=_whole(data.get("step")),
        checkpoint_name=_words(data.get("sd_checkpoint_name")),
        checkpoint_hash=_words(data.get("sd_checkpoint")),
    )


def vectors_of(where: str, data: Mapping[str, Any]) -> dict[int, Tensor]:
    """Vectors by width from any of the known layouts. Raises `AdapterError` that names `where`."""
    params = data.get("string_to_param")
    if isinstance(params, Mapping):
        found = list(params.values())
    elif "string_to_param.*" in data:
        found = [data["string_to_param.*"]]
    elif any(name.startswith("clip_") for name in data):  # one table for each text encoder
        found = [table for name, table in data.items() if name.startswith("clip_")]
    elif "emb_params" in data:
        found = [data["emb_params"]]
    else:  # diffusers: the word itself is the key
        found = [tensor for tensor in data.values() if isinstance(tensor, Tensor)]
        found = found if len(found) == 1 else []
    vectors: dict[int, Tensor] = {}
    for tensor in found:
        if not isinstance(tensor, Tensor) or tensor.ndim not in (1, 2) or not bool(torch.isfinite(tensor).all()):
            found = []
            break
        table = tensor.detach().float().reshape(-1, tensor.shape[-1])
        if not 1 <= table.shape[0] <= MAX_VECTORS:
            raise AdapterError(f"{where}: an embedding has 1 to {MAX_VECTORS} vectors, this one {table.shape[0]}.")
        vectors[table.shape[1]] = table
    if not found:
        raise AdapterError(f"{where}: no textual inversion embedding in it. Take the file out of the folder.")
    return vectors


def _from_pickle(path: Path) -> dict[str, Any]:
    data = read_pickle(path)
    if not isinstance(data, dict):
        raise AdapterError(f"{path.name}: no textual inversion embedding in it.")
    return data


def _is_preview(image: Path) -> bool:
    """Whether the image shows an embedding that is in the same folder under the same name."""
    return any(image.with_suffix(suffix).is_file() for suffix in EMBEDDING_SUFFIXES)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _words(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
