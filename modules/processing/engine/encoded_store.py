"""Encoded prompts on disk: a prompt that is used again after a restart does not run the text encoders.

One file per encoded prompt, named by a hash of everything that it depends on (`ResultIdentity`) and of the versions of
the programs that made it; the texts are not in it. Files that cannot be read are dropped and made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from modules.errors import FeatherweightError
from modules.models.files.tensor_file import TensorFile
from modules.models.files.tensor_writer import TensorWriter
from modules.prompting.cache import ResultIdentity
from modules.prompting.conditioning import ComposedConditioning, Conditioning, ScheduledConditioning
from modules.system.bounded import read_json
from modules.version import PROGRAM_VERSION

log = logging.getLogger(__name__)

Encoded = tuple[ComposedConditioning, ...] | tuple[ScheduledConditioning, ...]
T = TypeVar("T", tuple[ComposedConditioning, ...], tuple[ScheduledConditioning, ...])
STRUCTURE = "structure"
SUFFIX = ".prompt.safetensors"
MAX_ENTRIES = 4096


class EncodedStore:
    """The files of one folder, at most `limit_bytes` of them together; the least recently used go first."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit = folder, limit_bytes

    def get_or_make(self, identity: ResultIdentity, device: torch.device, make: Callable[[], T]) -> T:
        """The stored encoding, its tensors on this device (masks on the CPU); else what `make` makes and stores."""
        if self._limit <= 0:
            return make()
        path = self._folder / f"{key_of(identity)}{SUFFIX}"
        found = self._read(path, device)
        if found is not None:
            return found  # type: ignore[return-value] # what was stored under this identity is of its kind
        made = make()
        self._write(path, made)
        return made

    def _read(self, path: Path, device: torch.device) -> Encoded | None:
        if not path.is_file():
            return None
        try:
            with TensorFile(path) as file:
                read = {name: file.read(name) for name in file.entries}
                tensors = {
                    name: each.cpu() if each.dtype == torch.bool else each.to(device) for name, each in read.items()
                }
                structure = read_json(file.metadata[STRUCTURE])
            os.utime(path)
            if all("parts" in item for item in structure):
                return tuple(_composed(item, tensors) for item in structure)
            return tuple(_scheduled(item, tensors) for item in structure)
        except (FeatherweightError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("The stored prompt %s cannot be read (%s) and is made again.", path.name, error)
            path.unlink(missing_ok=True)
            return None

    def _write(self, path: Path, encoded: Encoded) -> None:
        """A prompt that cannot be stored is made again the next time: the log says why, and the image goes on."""
        tensors: dict[str, Tensor] = {}
        structure = [_described(item, tensors) for item in encoded]
        if len(tensors) > MAX_ENTRIES:
            return
        text = json.dumps(structure)
        shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        try:
            with TensorWriter(path, shapes, len(text.encode()) + 1024) as writer:
                writer.metadata = {STRUCTURE: text}
                for name, tensor in tensors.items():
                    writer.write(name, tensor)
            self._trim()
        except (FeatherweightError, OSError) as error:
            log.warning("An encoded prompt was not stored: %s", error)

    def _trim(self) -> None:
        files = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            try:
                stat = path.stat()
            except OSError:  # another process removed it
                continue
            files.append((stat.st_mtime_ns, stat.st_size, path))
        left = self._limit
        for _, size, path in sorted(files, reverse=True):
            left -= size
            if left < 0:
                path.unlink(missing_ok=True)


def key_of(identity: ResultIdentity) -> str:
    """A hash of all fields of an identity and of the versions of the programs."""
    text = repr((identity, PROGRAM_VERSION, torch.__version__))
    return hashlib.sha256(text.encode()).hexdigest()


def _described(item: ComposedConditioning | ScheduledConditioning, tensors: dict[str, Tensor]) -> dict[str, object]:
    if isinstance(item, ComposedConditioning):
        return {"parts": [[_described(part, tensors), weight] for part, weight in item.parts]}
    known = {id(tensor): name for name, tensor in tensors.items()}

    def named(tensor: Tensor | None) -> str | None:
        if tensor is None:
            return None
        if id(tensor) not in known:
            known[id(tensor)] = str(len(tensors))
            tensors[known[id(tensor)]] = tensor
        return known[id(tensor)]

    return {"steps": [[end, named(each.crossattn), named(each.vector), named(each.mask)] for end, each in item.entries]}


def _scheduled(item: dict[str, list[list[object]]], tensors: dict[str, Tensor]) -> ScheduledConditioning:
    return ScheduledConditioning(
        tuple(
            (int(str(end)), Conditioning(tensors[str(tokens)], *(_optional(tensors, name) for name in others)))
            for end, tokens, *others in item["steps"]
        )
    )


def _optional(tensors: dict[str, Tensor], name: object) -> Tensor | None:
    return None if name is None else tensors[str(name)]


def _composed(item: dict[str, list[list[object]]], tensors: dict[str, Tensor]) -> ComposedConditioning:
    return ComposedConditioning(
        tuple((_scheduled(part, tensors), float(str(weight))) for part, weight in item["parts"])  # type: ignore[arg-type]
    )
