"""A server of files on this machine that behaves as a test says: redirects, ranges, tags, gates, faults."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def safetensors(tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None = None) -> bytes:
    """A file with tensors of zeros: names to (stored type, shape)."""
    sizes = {"F16": 2, "BF16": 2, "F32": 4, "F8_E4M3": 1}
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        count = sizes[dtype]
        for side in shape:
            count *= side
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + count]}
        at += count
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(at)


@dataclass
class Behavior:
    """What the server does with one path. `fault` gets the handler and the number of the request, and answers itself
    where it returns True."""

    body: bytes
    etag: str = '"v1"'
    last_modified: str = ""
    sha256: str | None = None  # announced; None: the true one
    has_ranges: bool = True
    content_type: str = "application/octet-stream"
    filename: str = ""
    redirect: str = ""
    token: str = ""
    fault: Callable[[Handler, int], bool] = lambda handler, number: False
    requests: list[tuple[str, str]] = field(default_factory=list)  # Range and Authorization of each
    sent_bytes: int = 0


class Handler(BaseHTTPRequestHandler):
    behaviors: dict[str, Behavior]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        behavior = self.behaviors.get(self.path.partition("?")[0])
        if behavior is None:
            self.answer(404, b"no")
        else:
            self.reply(behavior)

    def reply(self, behavior: Behavior) -> None:
        behavior.requests.append((self.headers.get("Range", ""), self.headers.get("Authorization", "")))
        if behavior.fault(self, len(behavior.requests) - 1):
            return
        if behavior.redirect:
            self.send_response(302)
            self.send_header("Location", behavior.redirect)
            self.send_header("X-Linked-Etag", f'"{self.announced(behavior)}"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif behavior.token and self.headers.get("Authorization") != f"Bearer {behavior.token}":
            self.answer(401, b"who are you")
        else:
            self.give(behavior)

    def announced(self, behavior: Behavior) -> str:
        return hashlib.sha256(behavior.body).hexdigest() if behavior.sha256 is None else behavior.sha256

    def give(self, behavior: Behavior, cut: int | None = None) -> None:
        """The body or the part of it that is asked for; `cut`: the connection ends after so many bytes."""
        body, wanted = behavior.body, self.headers.get("Range", "")
        is_same = self.headers.get("If-Range") in (None, behavior.etag or behavior.last_modified)
        begin, end, status = 0, len(body) - 1, 200
        if wanted and behavior.has_ranges and is_same:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end, status = int(first), min(int(last or end), end), 206
            if begin >= len(body):
                self.answer(416, b"")
                return
        self.send_response(status)
        self.send_header("Content-Length", str(end - begin + 1))
        self.send_header("Content-Type", behavior.content_type)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end}/{len(body)}")
        if behavior.etag:
            self.send_header("ETag", behavior.etag)
        if behavior.last_modified:
            self.send_header("Last-Modified", behavior.last_modified)
        if behavior.sha256 != "":
            self.send_header("X-Linked-Etag", f'"{self.announced(behavior)}"')
        if behavior.filename:
            self.send_header("Content-Disposition", f'attachment; filename="{behavior.filename}"')
        self.end_headers()
        part = body[begin : end + 1]
        sent = part if cut is None else part[:cut]
        try:
            self.wfile.write(sent)
        except OSError:
            self.close_connection = True  # the client has read enough
        behavior.sent_bytes += len(sent)
        if len(sent) < len(part):
            self.close_connection = True

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(behaviors: dict[str, Behavior], certificate: Path | None = None) -> Iterator[str]:
    """The server's address; it ends with the block. `certificate`: with its key in one file, for https."""
    handler = type("Own", (Handler,), {"behaviors": behaviors})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        # The handshake belongs to the connection's own thread: one that fails there must not end the server.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if certificate else ''}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
