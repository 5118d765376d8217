"""Replies of the page are sent compressed: by brotli to browsers that take it, else by gzip. Files whose address names
their content are compressed once: a first visit asks for a hundred of them, and each took 6 ms of the machine."""

import re

import anyio.to_thread
import brotli
from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipResponder, IdentityResponder
from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNPACKED = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/json")
"""JSON is not compressed: most of it are images in base64."""
MIN_BYTES = 1000
THREAD_MIN_BYTES = 128 * 1024
"""What is larger is compressed in a thread, because the others would wait for it."""
BROTLI_QUALITY = 5
GZIP_LEVEL = 5
PAGE_GZIP_LEVEL = 9
"""Of HTML: a level more takes milliseconds of the machine, and the page is there sooner over a slow line."""

GRADIO_FILE = re.compile(r"/assets/[^/]+-[\w-]{8}\.(?:js|css)$")
"""Gradio's own scripts and styles: named by a hash of their content, which their replies do not say."""
KEPT = "private, max-age=31536000, immutable"


def compress(app: FastAPI) -> None:
    """Send page, scripts and styles compressed."""
    app.add_middleware(CompressionMiddleware)


class CompressionMiddleware:
    """Choose the coding by what the request accepts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._kept: dict[tuple[str, str], list[Message]] = {}
        """Whole replies, by path and coding."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; websockets pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        accepted = {
            coding.partition(";")[0].strip(): "q=0" not in coding.replace("q=0.", "")
            for coding in Headers(scope=scope).get("Accept-Encoding", "").lower().split(",")
        }
        coding = next((name for name in ("br", "gzip") if accepted.get(name)), "")
        key = (scope["path"], coding)
        if scope["method"] != "GET":
            await self._responder(coding)(scope, receive, send)
        elif key in self._kept:
            for message in self._kept[key]:
                await send(_copied(message))
        else:
            await self._responder(coding)(scope, receive, self._keeping(key, send))

    def _responder(self, coding: str) -> IdentityResponder:
        if coding == "br":
            return BrotliResponder(self._app, MIN_BYTES, exclude_content_types=UNPACKED)
        if coding == "gzip":
            return LeveledGzipResponder(self._app, MIN_BYTES, GZIP_LEVEL, exclude_content_types=UNPACKED)
        return IdentityResponder(self._app, MIN_BYTES, exclude_content_types=UNPACKED)

    def _keeping(self, key: tuple[str, str], send: Send) -> Send:
        """Send, and keep the reply if its address stands for its content."""
        messages: list[Message] = []
        is_kept = False

        async def sent(message: Message) -> None:
            nonlocal is_kept
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                is_gradio = GRADIO_FILE.search(key[0]) is not None and message["status"] == 200
                if is_gradio:
                    headers.setdefault("Cache-Control", KEPT)
                is_kept = message["status"] == 200 and (is_gradio or "immutable" in headers.get("Cache-Control", ""))
            if is_kept:
                messages.append(_copied(message))
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    self._kept[key] = messages
            await send(message)

        return sent


def _copied(message: Message) -> Message:
    """A message whose headers those who send it may change."""
    return {**message, "headers": list(message["headers"])} if "headers" in message else {**message}


class LeveledGzipResponder(GZipResponder):
    """Gzip that takes more time for the page itself than for scripts."""

    async def send_with_compression(self, message: Message) -> None:
        """Choose the level by the type, before the first byte."""
        if message["type"] == "http.response.start":
            kind = Headers(raw=message.get("headers", [])).get("content-type", "")
            self.compresslevel = PAGE_GZIP_LEVEL if kind.startswith("text/html") else GZIP_LEVEL
        await super().send_with_compression(message)


class BrotliResponder(IdentityResponder):
    """Brotli: its window holds the whole page, in which much is said twice."""

    content_encoding = "br"
    _compressor: brotli.Compressor | None = None

    async def apply_compression(self, body: bytes, *, more_body: bool) -> bytes:
        """A part of the reply, compressed; the last part ends the stream."""
        if len(body) >= THREAD_MIN_BYTES:
            return await anyio.to_thread.run_sync(self._packed, body, more_body)
        return self._packed(body, more_body)

    def _packed(self, body: bytes, more_body: bool) -> bytes:
        if self._compressor is None:
            self._compressor = brotli.Compressor(quality=BROTLI_QUALITY)
        packed: bytes = self._compressor.process(body)
        rest: bytes = self._compressor.flush() if more_body else self._compressor.finish()
        return packed + rest
