"""Middleware around every request: limits on the body as it arrives, and the time it took."""

import asyncio
import json
import re
import time
from collections.abc import Iterable

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from modules.api.schema.errors import reply
from modules.errors import InvalidValueError
from modules.settings.setting import why_not_storable
from modules.system.bounded import ContentError, DepthError, read_json

MAX_BODY_BYTES = 256 * 1024 * 1024
MAX_JSON_DEPTH = 64  # lists and objects inside of each other
BODY_WAIT_S = 20.0  # for a body to begin to come; after that it has to keep to MIN_BYTES_PER_S
MIN_BYTES_PER_S = 10_000
HEAD_WAIT_S = 20.0  # for the whole head of a request
CHECKED_IN_PLACE_BYTES = 100_000  # a larger body is checked in a thread, so that the other requests go on

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_ODD_NUMBER = re.compile(rb"(?:^|[\s:,\[])-?(?:NaN|Infinity|\d[\d.]*[eE]\+?\d{3}|\d{41})")
"""NaN and infinities, and numbers that are none for a float or a database."""
_CLOSE = {"Connection": "close"}  # the rest of a refused body is not read


def install_limits(app: FastAPI) -> None:
    """Refuse bodies that are too large, too slow or no clean JSON, and add X-Process-Time."""
    app.add_middleware(BodyLimits)


class BodyLimits:
    """ASGI middleware: counts and times a body as it is read, and looks into JSON before any route does."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()

        async def timed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Process-Time"] = f"{time.monotonic() - began:.4f}"
            await send(message)

        headers = Headers(scope=scope)
        body = _Body(receive)
        try:
            body.check_size(headers.get("content-length", ""))
            if _is_json(headers.get("content-type", "")):
                await body.read_json()
        except HTTPException as error:
            refusal = reply(error.status_code, "InvalidValueError", error.detail, headers=_CLOSE)
            await refusal(scope, receive, timed_send)
            return
        except InvalidValueError as error:
            await reply(422, "InvalidValueError", str(error))(scope, receive, timed_send)
            return
        await self.app(scope, body.receive, timed_send)


class _Body:
    """The body of one request on its way in."""

    def __init__(self, receive: Receive) -> None:
        self._source = receive
        self._began = time.monotonic()
        self._bytes = 0
        self._is_complete = False
        self._kept: bytes | None = None  # read, and not handed on yet

    def check_size(self, length: str) -> None:
        """Raise HTTPException 413 for a Content-Length beyond the limit."""
        if length.isascii() and length.isdigit() and int(length) > MAX_BODY_BYTES:
            raise _too_large(f"has {length} bytes")

    async def receive(self) -> Message:
        """The next message, counted and timed while the body comes; raises HTTPException 413 and 408."""
        if self._kept is not None:
            data, self._kept = self._kept, None
            return {"type": "http.request", "body": data, "more_body": False}
        if self._is_complete:
            return await self._source()
        left = self._began + BODY_WAIT_S + self._bytes / MIN_BYTES_PER_S - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0.0)):
                message = await self._source()
        except TimeoutError:
            raise HTTPException(
                408,
                f"The body came too slowly ({self._bytes} bytes in {time.monotonic() - self._began:.0f} s) and was "
                "given up. Send it again.",
                headers=_CLOSE,
            ) from None
        self._bytes += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._bytes > MAX_BODY_BYTES:
            raise _too_large("goes on")
        return message

    async def read_json(self) -> None:
        """Take the whole body in and check it, see `check_json`; `receive` hands it on afterwards."""
        parts: list[bytes] = []
        while not self._is_complete:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise InvalidValueError("The client went away before the body was complete.")
            parts.append(message.get("body", b""))
        data = b"".join(parts)
        del parts
        if len(data) <= CHECKED_IN_PLACE_BYTES:
            check_json(data)
        else:
            await asyncio.to_thread(check_json, data)
        self._kept = data


class SlowHeadProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn serves it, but a connection is closed whose request head does not arrive in `HEAD_WAIT_S`.

    uvicorn's own limit is for connections that are silent after a reply; one byte a second would hold them for ever.
    """

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if not self._is_between_requests():
            self._stop_watching()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_WAIT_S, self._give_up)

    def _stop_watching(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _give_up(self) -> None:
        self._head_timer = None
        # A connection that became a WebSocket belongs to another protocol by now.
        if self._is_between_requests() and self.transport.get_protocol() is self:
            self.transport.close()


def check_json(data: bytes) -> None:
    """Raise InvalidValueError for JSON that is not UTF-8, nested too deep, or holds a lone surrogate, NaN, an
    infinity or a number that is beyond all floats.

    JSON that is wrong otherwise passes: the route answers it. The common body costs four searches and no parsing.
    """
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"The body is not UTF-8 at byte {error.start}. Send JSON in UTF-8.") from error
    if b"\0" in data:
        raise InvalidValueError(f"The body has a null byte at {data.index(0)}; it may be UTF-16. Send JSON in UTF-8.")
    is_flat = data.count(b"[") + data.count(b"{") <= MAX_JSON_DEPTH
    if is_flat and not _SURROGATE_ESCAPE.search(data) and not _ODD_NUMBER.search(data):
        return
    try:
        value = read_json(data, max_bytes=len(data), max_depth=MAX_JSON_DEPTH)
    except DepthError as error:
        raise _too_deep() from error
    except ContentError as error:
        if isinstance(error.__cause__, json.JSONDecodeError):
            return
        raise InvalidValueError(f"The body cannot be taken: {error}. Send numbers of usual size.") from error
    _check_values(value)


def _check_values(value: object) -> None:
    """Look at every value of JSON data, without recursion. A null character is for the routes to judge: a prompt, a
    setting and a task id have sentences of their own."""
    left: list[tuple[object, str]] = [(value, "")]
    while left:
        item, name = left.pop()
        inner: Iterable[tuple[object, object]] = ()
        if isinstance(item, str):
            problem = why_not_storable(item.replace("\0", ""))
            if problem:
                raise InvalidValueError(f"{name or 'The body'} holds {problem}, which is no character. Remove it.")
        elif isinstance(item, dict):
            inner = item.items()
            left += [(key, "A name in the body") for key in item]
        elif isinstance(item, list):
            inner = ((name, part) for part in item)
        else:
            continue
        left += [(part, str(key)) for key, part in inner]


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def _too_large(what: str) -> HTTPException:
    allowed = MAX_BODY_BYTES // 1024**2
    return HTTPException(413, f"The request {what}; allowed are {allowed} MB.", headers=_CLOSE)


def _too_deep() -> InvalidValueError:
    return InvalidValueError(
        f"The body holds lists and objects nested deeper than {MAX_JSON_DEPTH}. Send flatter values."
    )
