"""Facts of a file of adapters, read without its tensors: its hash, what is wrong with it. Imports no
torch."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from modules.errors import FeatherweightError
from modules.models.files.header import LENGTH_BYTES, header_length

SUFFIXES = (".safetensors", ".pt", ".ckpt", ".bin")
EMBEDDING_SUFFIXES = (".pt", ".bin", ".safetensors")
EMBEDDING_IMAGE_SUFFIXES = (".png", ".webp", ".jxl", ".avif")
HASH_CHUNK_BYTES = 1 << 20


class AdapterError(FeatherweightError):
    """An adapter file that cannot be used: damaged, for another model family, or of an unknown algorithm."""

    status = 422


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
            start = file.read(LENGTH_BYTES)
            if len(start) < LENGTH_BYTES:
                raise ValueError("it is too short")
            length = header_length(start)
            if length > path.stat().st_size:
                raise ValueError("it is shorter than its header says")
            header = file.read(length)
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    tensors = digest.hexdigest()
    return Digests(tensors, hashlib.sha256(header + digest.digest()).hexdigest() if header else tensors)
