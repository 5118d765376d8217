"""The page's events, which Gradio hands to its script with the rest of the page, kept out of Svelte's proxies.

Svelte puts a proxy around each plain array and object of the page. Gradio looks through all events once for each of
the page's 1,500 components, and through proxies that is a third of the time until the page stands. Svelte leaves arrays
of other classes as they are, and the events of a page never change.
"""

import re
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEAD = b"<style>"
"""The first in the head of Gradio's page that is not about the page alone; the page's data are behind it."""
PAGE_SCRIPT = b"<script>window.gradio_api_info"
"""The first script of Gradio's page behind the page's data."""
KEEP_PLAIN = b"""<script>{
const events = window.gradio_config?.dependencies;
if (Array.isArray(events)) Object.setPrototypeOf(events, class extends Array {}.prototype);
const { page, layout, components } = window.gradio_config ?? {};
const ids = (parts) => parts.map((part) => part.id);
if (page && !page[""]) page[""] = { layout, components: ids(components), dependencies: ids(events) };
if (window.gradio_config) window.gradio_config.root = new URL(".", location.href).href.slice(0, -1);
}</script>"""
"""The root is where the browser found the page: a reverse proxy need not say by which name it was called."""
PARTS = re.compile(rb'"page":\{"":\{.*?\}\},"mcp_server"')
"""What the only page consists of, which is everything: a seventh of what is sent, and the script says it again."""
ROOT = re.compile(rb'const root = "[^"\n]*";')
"""Where another script of Gradio's page has the root; a dot is the page's own place."""


@dataclass
class PageStart:
    """Beginning of the page's head, where a browser meets it before the page's data; Reload UI changes it."""

    html: str = ""


class PlainEventsMiddleware:
    """Puts scripts before those of Gradio's page; other replies pass as they are."""

    def __init__(self, app: ASGIApp, start: PageStart) -> None:
        self._app = app
        self._start = start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; websockets pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held: list[Message] = []  # the start of a page: its length is known with its body

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                if _is_html(message):
                    held.append(message)
                else:
                    await send(message)
                return
            for start in held:
                await send(_with_scripts(start, message, self._start.html.encode()))
            held.clear()
            await send(message)

        await self._app(scope, receive, sent)


def _is_html(start: Message) -> bool:
    return MutableHeaders(raw=start.get("headers", [])).get("content-type", "").startswith("text/html")


def _with_scripts(start: Message, body: Message, first: bytes) -> Message:
    """Put the scripts into a whole page, and its length into what goes before; gives that."""
    page: bytes = body.get("body", b"")
    if PAGE_SCRIPT in page and not body.get("more_body"):
        page = PARTS.sub(b'"page":{},"mcp_server"', ROOT.sub(b'const root = ".";', page, count=1), count=1)
        body["body"] = page.replace(PAGE_SCRIPT, KEEP_PLAIN + PAGE_SCRIPT, 1).replace(HEAD, first + HEAD, 1)
        headers = MutableHeaders(raw=list(start["headers"]))
        headers["content-length"] = str(len(body["body"]))
        return {**start, "headers": headers.raw}
    return start
