"""Facts of a file from its server, and its header, read before a byte of its weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from modules.downloads.addresses import Source
from modules.downloads.transport import DownloadError, FileTransport, Reply
from modules.errors import CheckpointError
from modules.models.files.file_header import HEAD_BYTES, head_of
from modules.models.files.header import LENGTH_BYTES, Header, Stored, as_header, format_of, header_length

PROBE_BYTES = 64 * 1024
SIZE = re.compile(r"[0-9]{1,18}")
CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-")
MAX_SIDES = 64  # of a tensor
MAX_HEADER_BYTES = 8 * 1024 * 1024
SHA256 = re.compile(r'"?([0-9a-fA-F]{64})"?')
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
    """Return what tells the version of a file from others, as `If-Range` takes it: a strong ETag, else the date of its
    last change; "" where the server says neither."""
    etag = reply.headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else reply.headers.get("Last-Modified", "")


def _size(reply: Reply, source: Source) -> int:
    if reply.status == 206:
        total = reply.headers.get("Content-Range", "").rpartition("/")[2]
    else:
        total = reply.headers.get("Content-Length", "")
    if not SIZE.fullmatch(total) or int(total) == 0:
        raise DownloadError(f"{source.label}: the server does not say how large the file is; get it in a browser.")
    return int(total)


def _attachment(reply: Reply) -> str:
    disposition = reply.header("Content-Disposition") or ""
    starred = re.search(r"filename\*=(?:UTF-8'')?([^;]+)", disposition, re.IGNORECASE)
    plain = re.search(r'filename="?([^";]+)"?', disposition, re.IGNORECASE)
    return unquote(starred[1].strip('" ')) if starred else plain[1].strip() if plain else ""


def _sha256(reply: Reply) -> str:
    """Read what the Hub says of files in its large storage, and others in a header of their own."""
    for name in ("X-Linked-Etag", "X-Checksum-Sha256", "X-Amz-Meta-Sha256"):
        found = SHA256.fullmatch(reply.header(name) or "")
        if found:
            return found[1].lower()
    return ""


def read_header(remote: RemoteFile, transport: FileTransport) -> Header:
    """The header by a range request of its size. Raises `CheckpointError` for a file of weights that is none."""
    label = remote.source.label
    if format_of(remote.begins) in ("gguf", "pickle"):
        found, left = head_of(remote.begins, remote.size_bytes), min(HEAD_BYTES, remote.size_bytes)
        if found.is_whole or not remote.has_ranges or len(remote.begins) >= left:
            return found
        return head_of(remote.begins + read_range(remote, transport, len(remote.begins), left - 1), remote.size_bytes)
    if len(remote.begins) < LENGTH_BYTES:
        raise CheckpointError(f"{label}: {remote.size_bytes} bytes are no model.")
    length, begin = header_length(remote.begins), LENGTH_BYTES
    if not 2 <= length <= min(MAX_HEADER_BYTES, remote.size_bytes - begin) or remote.begins[begin : begin + 1] != b"{":
        raise CheckpointError(
            f"{label}: it does not begin as a safetensors or GGUF file does. It may be a web page, an archive or "
            "another kind of file."
        )
    raw = remote.begins[begin : begin + length]
    if len(raw) < length:
        raw += read_range(remote, transport, begin + len(raw), begin + length - 1)
    return as_header(raw, label)


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


def saved_by_eight_bits(tensors: Mapping[str, Stored]) -> int:
    """Bytes that a file would lose in 8 bits, about: its matrices in one byte a value, but for the VAE's and
    vocabularies; the rest stays as it is."""
    saved = 0
    for name, (shape, dtype) in tensors.items():
        if len(shape) >= 2 and dtype in WIDE and not any(part in name for part in STAYING):
            saved += math.prod(shape) * (WIDE[dtype] - 1)
    return saved
