"""`modules.hashes`: sums of files, kept by the program."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from compat.facades.refusal import refusing
from compat.host import host_now
from modules.models.files.catalogue import HashCache
from modules.models.files.header import LENGTH_BYTES, header_length

blksize = 1 << 20


def _cache() -> HashCache:
    return host_now().engine.catalogue.cache


def sha256(filename: str, title: str = "", use_addnet_hash: bool = False) -> str | None:
    """The sha256 of a file in hex digits, read once for each content; None for no file, or with --no-hashing."""
    path = Path(filename)
    if not path.is_file():
        return None
    known = _cache().known(path)
    if known is None and host_now().flags.no_hashing:
        return None
    return known or _cache().checkpoint_sha256(path)


def sha256_from_cache(filename: str, title: str = "", use_addnet_hash: bool = False) -> str | None:
    """Return the same where it is known; None else."""
    return _cache().known(Path(filename)) if Path(filename).is_file() else None


def calculate_sha256(filename: str) -> str:
    """Return the same, read now."""
    with Path(filename).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def addnet_hash_safetensors(b: Any) -> str:
    """The hash that LoRA files are named by: of the tensors' bytes behind the header."""
    b.seek(0)
    b.seek(LENGTH_BYTES + header_length(b.read(LENGTH_BYTES)))
    digest = hashlib.sha256()
    while block := b.read(blksize):
        digest.update(block)
    return digest.hexdigest()


def partial_hash_from_cache(filename: str, ignore_cache: bool = False) -> str | None:
    """The short hash, where it is known."""
    known = sha256_from_cache(filename)
    return known[:10] if known else None


__getattr__ = refusing(
    "hashes", {"dump_cache": "sums are saved when they are taken.", "cache": "use sha256(filename)."}
)
