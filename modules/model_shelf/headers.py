"""What a model file on disk says of itself, by its header alone; and which entries of the list that ships it is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from modules.bounded import read_json
from modules.downloads.kinds import gguf_architecture
from modules.downloads.known import KnownModel
from modules.downloads.remote_file import GGUF_MAGIC, MAX_HEADER_BYTES, PROBE_BYTES

Tensors = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and stored type by name."""


class Headers:
    """Reads headers, each once while its file stays as it is. Threads may share it."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], Tensors, str]] = {}

    def tensors(self, path: Path) -> Tensors:
        """Of a safetensors file; empty for other formats and for what cannot be read."""
        return self._read(path)[0]

    def architecture(self, path: Path) -> str:
        """What a GGUF file is; "" for other formats."""
        return self._read(path)[1]

    def _read(self, path: Path) -> tuple[Tensors, str]:
        try:
            stat = path.stat()
            stamp = (stat.st_size, stat.st_mtime_ns)
            known = self._known.get(path)
            if known is None or known[0] != stamp:
                known = self._known[path] = (stamp, *_header(path, stat))
        except OSError:  # gone since the folder was listed
            return {}, ""
        return known[1], known[2]


def _header(path: Path, stat: os.stat_result) -> tuple[Tensors, str]:
    with path.open("rb") as file:
        begins = file.read(PROBE_BYTES)
        if begins.startswith(GGUF_MAGIC):
            return {}, gguf_architecture(begins)
        length = int.from_bytes(begins[:8], "little")
        if path.suffix.lower() not in (".safetensors", ".sft") or not 2 <= length <= min(
            MAX_HEADER_BYTES, stat.st_size
        ):
            return {}, ""
        raw = begins[8 : 8 + length] + (file.read(8 + length - len(begins)) if 8 + length > len(begins) else b"")
    try:
        found = read_json(raw)
        found.pop("__metadata__", None)
        return {name: (tuple(entry["shape"]), str(entry["dtype"])) for name, entry in found.items()}, ""
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}, ""  # loading says what is wrong with the file


def is_model(entry: KnownModel, tensors: Tensors, architecture: str = "") -> bool:
    """Whether a header has what the list says that tells this entry. Names may stand below others ("vae.")."""
    if architecture:
        return architecture in entry.gguf
    if not entry.tells:
        return False
    return all(_has(tensors, name, tuple(shape)) for name, shape in entry.tells.items())


def _has(tensors: Tensors, name: str, shape: tuple[int, ...]) -> bool:
    return any(
        (found == name or found.endswith(f".{name}")) and (not shape or each[0] == shape)
        for found, each in tensors.items()
    )


def missing_parts(
    path: Path, known: Mapping[str, KnownModel], files: Iterable[Path], headers: Headers
) -> tuple[KnownModel, ...]:
    """The parts that a checkpoint needs by the list and that are neither in itself nor among `files`."""
    tensors, architecture = headers.tensors(path), headers.architecture(path)
    model = next((one for one in known.values() if one.parts and is_model(one, tensors, architecture)), None)
    if model is None:
        return ()
    candidates = tuple(files)
    return tuple(
        known[part]
        for part in model.parts
        if not is_model(known[part], tensors)
        and not any(is_model(known[part], headers.tensors(file), headers.architecture(file)) for file in candidates)
    )
