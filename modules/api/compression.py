"""The page's HTML goes out compressed; everything else is left to who serves it (assets are compressed already, images
cannot be, and streams must not wait)."""

import gzip

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST_BYTES = 1000
LEVEL = 5


class CompressHtml:
    """Middleware: gzip for whole replies of type text/html, where the client takes it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or "gzip" not in Headers(scope=scope).get("accept-encoding", ""):
            await self.app(scope, receive, send)
            return
        held: list[Message] = []  # the start of a reply of HTML, until its whole body is there
        body = bytearray()

        async def pass_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = Headers(raw=message["headers"])
                is_html = headers.get("content-type", "").startswith("text/html") and "content-encoding" not in headers
                if not is_html:
                    await send(message)
                else:
                    held.append(message)
            elif not held:
                await send(message)
            else:
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    packed = _compressed(held[0], bytes(body))  # which changes the headers of the start, too
                    await send(held[0])
                    await send({"type": "http.response.body", "body": packed})

        await self.app(scope, receive, pass_on)


def _compressed(start: Message, body: bytes) -> bytes:
    """The body as it is sent, with the headers of the start of the reply made to fit it."""
    headers = MutableHeaders(raw=start["headers"])
    headers.add_vary_header("Accept-Encoding")
    start["headers"] = headers.raw
    if len(body) < LEAST_BYTES:
        return body
    packed = gzip.compress(body, LEVEL, mtime=0)
    headers["Content-Encoding"] = "gzip"
    if "content-length" in headers:
        headers["Content-Length"] = str(len(packed))
    start["headers"] = headers.raw
    return packed
