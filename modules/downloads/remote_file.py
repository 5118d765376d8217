"""What a server says of a file, and its header, read before a byte of its weights."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from modules.downloads.addresses import Source
from modules.downloads.transport import DownloadError, FileTransport, Reply
from modules.errors import CheckpointError

PROBE_BYTES = 64 * 1024
MAX_HEADER_BYTES = 8 * 1024 * 1024
SHA256 = re.compile(r'"?([0-9a-fA-F]{64})"?')
GGUF_MAGIC = b"GGUF"
PICKLED = re.compile(rb"PK\x03\x04|\x80[\x02-\x05]")
"""How a pickle begins, in an archive as PyTorch writes it or alone."""
WIDE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of the types that 8 bits replace."""
STAYING = ("first_stage_model.", "vae.", "token_embedding", "embed_tokens", "shared.weight")
"""Parts of names of what stays in 16 bits."""
WORTHWHILE = 0.2
"""Of a file: what 8 bits must save to be offered."""


@dataclass(frozen=True)
class RemoteFile:
    """A file as its server describes it. `version`: what tells another version of it, its strong ETag or the date of
    its last change; `sha256`: what the server says that
    its bytes are; "" where it says nothing. `begins`: its first bytes."""

    source: Source
    name: str
    size_bytes: int
    version: str
    sha256: str
    has_ranges: bool
    begins: bytes = field(repr=False, default=b"")


def look(source: Source, transport: FileTransport) -> RemoteFile:
    """Ask for the first bytes of a file. Raises `DownloadError` where it is none, and as `FileTransport.get`."""
    with transport.get(source.url, 0, PROBE_BYTES - 1, may_be_local=source.is_typed) as reply:
        if reply.status == 416:
            raise DownloadError(f"{source.label} is empty.")
        kind = reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind in ("text/html", "application/xhtml+xml"):
            raise DownloadError(
                f"{source.label} is a web page and no file. Copy the address of its download button, or get the file "
                "in a browser: some sites ask for a login first."
            )
        size = _size(reply, source)
        begins = b""
        for chunk in reply.chunks():
            begins += chunk
            if len(begins) >= min(PROBE_BYTES, size):
                break
        return RemoteFile(
            source,
            source.file or _attachment(reply) or "",
            size,
            version_of(reply),
            _sha256(reply),
            reply.status == 206,
            begins[:PROBE_BYTES],
        )


def version_of(reply: Reply) -> str:
    """What tells the version of a file from others, as `If-Range` takes it: a strong ETag, else the date of its last
    change; "" where the server says neither."""
    etag = reply.headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else reply.headers.get("Last-Modified", "")


def _size(reply: Reply, source: Source) -> int:
    if reply.status == 206:
        total = reply.headers.get("Content-Range", "").rpartition("/")[2]
    else:
        total = reply.headers.get("Content-Length", "")
    if not total.isdigit() or int(total) == 0:
        raise DownloadError(f"{source.label}: the server does not say how large the file is; get it in a browser.")
    return int(total)


def _attachment(reply: Reply) -> str:
    disposition = reply.header("Content-Disposition") or ""
    starred = re.search(r"filename\*=(?:UTF-8'')?([^;]+)", disposition, re.IGNORECASE)
    plain = re.search(r'filename="?([^";]+)"?', disposition, re.IGNORECASE)
    return unquote(starred[1].strip('" ')) if starred else plain[1].strip() if plain else ""


def _sha256(reply: Reply) -> str:
    """What the Hub says of files in its large storage, and others in a header of their own."""
    for name in ("X-Linked-Etag", "X-Checksum-Sha256", "X-Amz-Meta-Sha256"):
        found = SHA256.fullmatch(reply.header(name) or "")
        if found:
            return found[1].lower()
    return ""


@dataclass(frozen=True)
class Header:
    """What a file's header says: its format, the shape and stored type of each tensor, the metadata, and of a
    safetensors file the header's bytes."""

    format: str  # "safetensors", "gguf", "pickle"
    tensors: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    raw: bytes = field(repr=False, default=b"")

    @property
    def parameters(self) -> int:
        """Weights in all tensors."""
        return sum(_product(shape) for shape, _ in self.tensors.values())

    @property
    def types(self) -> dict[str, int]:
        """Weights by their stored type."""
        found: dict[str, int] = {}
        for shape, dtype in self.tensors.values():
            found[dtype] = found.get(dtype, 0) + _product(shape)
        return found


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count


def read_header(remote: RemoteFile, transport: FileTransport) -> Header:
    """The header by a range request of its size. Raises `CheckpointError` for a file of weights that is none."""
    if remote.begins.startswith(GGUF_MAGIC):
        return Header("gguf")
    if len(remote.begins) < 8:
        raise CheckpointError(f"{remote.source.label}: {remote.size_bytes} bytes are no model.")
    length = int.from_bytes(remote.begins[:8], "little")
    is_safetensors = 2 <= length <= min(MAX_HEADER_BYTES, remote.size_bytes - 8) and remote.begins[8:9] == b"{"
    if not is_safetensors and PICKLED.match(remote.begins):
        return Header("pickle")
    if not is_safetensors:
        raise CheckpointError(
            f"{remote.source.label}: it does not begin as a safetensors or GGUF file does. It may be a web page, an "
            "archive or another kind of file."
        )
    raw = remote.begins[8 : 8 + length]
    if len(raw) < length:
        raw += read_range(remote, transport, 8 + len(raw), 8 + length - 1)
    try:
        found = json.loads(raw)
        metadata = found.pop("__metadata__", None) or {}
        tensors = {str(name): _entry(entry) for name, entry in found.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{remote.source.label}: its header cannot be read ({error}).") from error
    return Header("safetensors", tensors, {str(key): str(value) for key, value in metadata.items()}, raw)


def _entry(entry: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
    return tuple(int(side) for side in entry["shape"]), str(entry["dtype"])


def read_range(remote: RemoteFile, transport: FileTransport, begin: int, end: int) -> bytes:
    """The bytes from `begin` up to and with `end`. Raises `DownloadError` where they do not come."""
    source = remote.source
    with transport.get(source.url, begin, end, remote.version or None, may_be_local=source.is_typed) as reply:
        if reply.status != 206:
            raise DownloadError(
                f"{remote.source.label}: the server does not give parts of the file, and its header is longer."
            )
        found = b""
        for chunk in reply.chunks():
            found += chunk
            if len(found) > end - begin + 1:
                break  # one that never ends
    if len(found) != end - begin + 1:
        raise DownloadError(f"{remote.source.label}: the server sent {len(found)} bytes in place of {end - begin + 1}.")
    return found


def saved_by_eight_bits(tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> int:
    """Bytes that a file would lose in 8 bits, about: its matrices in one byte a value, but for the VAE's and
    vocabularies; the rest stays as it is."""
    saved = 0
    for name, (shape, dtype) in tensors.items():
        if len(shape) >= 2 and dtype in WIDE and not any(part in name for part in STAYING):
            saved += _product(shape) * (WIDE[dtype] - 1)
    return saved
