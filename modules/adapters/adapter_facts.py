"""What can be said of a file of adapters without its tensors: its metadata, its hash, what is wrong with it. Imports no
torch."""

import hashlib
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.bounded import read_json, read_json_at
from modules.errors import FeatherweightError

SUFFIXES = (".safetensors", ".pt", ".ckpt", ".bin")
EMBEDDING_SUFFIXES = (".pt", ".bin", ".safetensors")
EMBEDDING_IMAGE_SUFFIXES = (".png", ".webp", ".jxl", ".avif")
HASH_CHUNK_BYTES = 1 << 20
FRONT_BYTES = 1 << 16
HEADER_START = struct.Struct("<Q")
METADATA_FIRST = re.compile(r'\s*{\s*"__metadata__"\s*:\s*')


class AdapterError(FeatherweightError):
    """An adapter file that cannot be used: damaged, for another model family, or of an unknown algorithm."""

    status = 422


def read_metadata(path: Path) -> dict[str, str]:
    """The text table in a safetensors header; empty for other files and damaged ones."""
    if path.suffix.lower() != ".safetensors":
        return {}
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                return {}
            found = _metadata_in_front(file.read(min(length, FRONT_BYTES)))
            if found is None:
                file.seek(8)
                found = read_json(file.read(length)).get("__metadata__", {})
    except (OSError, ValueError, struct.error, AttributeError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _metadata_in_front(head: bytes) -> Any:
    """The table, if it comes first and whole, as most writers have it: the long list of tensors is not parsed then."""
    text = head.decode("utf-8", "ignore")
    start = METADATA_FIRST.match(text)
    if start is None:
        return None
    try:
        return read_json_at(text, start.end())[0]
    except ValueError:  # cut off
        return None


@dataclass(frozen=True)
class Digests:
    """sha256 in hex. `tensors`: of the tensors' bytes alone (editing the metadata keeps it), as infotexts have it.
    `content`: also of the header, which names them: two files with the same one hold the same adapter."""

    tensors: str
    content: str


def digests_of(path: Path) -> Digests:
    """Reads the whole file once; for others than safetensors both digests are the whole file's. Raises `OSError`, and
    `ValueError` for a file that is too short to have a header."""
    header, digest = b"", hashlib.sha256()
    with path.open("rb") as file:
        if path.suffix.lower() == ".safetensors":
            start = file.read(HEADER_START.size)
            if len(start) < HEADER_START.size:
                raise ValueError("it is too short")
            (length,) = HEADER_START.unpack(start)
            if length > path.stat().st_size:
                raise ValueError("it is shorter than its header says")
            header = file.read(length)
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    tensors = digest.hexdigest()
    return Digests(tensors, hashlib.sha256(header + digest.digest()).hexdigest() if header else tensors)
