"""Gradio's scripts with what makes its page slow to start left out.

On its first run, the effect that builds the page again after a change builds a page that was just built: all of its
1,500 components are made twice. For each event, the component that it belongs to is searched through all of them before
it is asked whether there is something to tell it, for each component its events through all events, and for each value
that is read or written its component through all components.
A script in which these places are not found as they stand here is served as it is.
"""

import re
from collections.abc import Sequence

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SCRIPT = re.compile(r"/assets/(Blocks|core)-[\w-]{8}\.js$")
CHANGES: dict[str, Sequence[tuple[bytes, bytes]]] = {
    "Blocks": (
        (
            b"le(()=>{v(),oe(()=>{O.reload(",
            b"let isBuilt=!0;le(()=>{v(),oe(()=>{if(isBuilt){isBuilt=!1;return}O.reload(",
        ),
        (
            b"async set_event_args(e,t){let n={},",
            b"async set_event_args(e,t){if(t&&!Object.keys(t).length)return()=>{};let n={},",
        ),
    ),
    "core": (
        (
            b"async get_state(e){let t=this.#s.get(e),n=",
            b"async get_state(e){let t=this.#s.get(e);if(t)return await t();let n=",
        ),
        (
            b"find_attached_events(e,t){let n=t.filter(t=>t.targets.find(([t])=>t===e.id)).map(t=>{let n=t.targets"
            b".find(([t])=>t===e.id);return n?n[1]:null}).filter(Boolean);",
            b"find_attached_events(e,t){if(this.eventsOf!==t){this.eventsOf=t;this.eventsBy=new Map;for(let n of t)"
            b"for(let[i,v]of new Map([...n.targets].reverse()))v&&this.eventsBy.set(i,[...this.eventsBy.get(i)||[],v])}"
            b"let n=[...this.eventsBy.get(e.id)||[]];",
        ),
        (
            b"function Z(e,t){if(e.id===t)return e;if(e.children)for(let n of e.children){let e=Z(n,t);if(e)return e}"
            b"return null}",
            b"const pathsOf=new WeakMap;function searched(e,t){if(e.id===t)return e;"
            b"if(e.children)for(let n of e.children){let e=searched(n,t);if(e)return e}return null}"
            b"function Z(e,t){let n=pathsOf.get(e)?.get(t)?.reduce((e,t)=>e?.children?.[t],e);if(n?.id===t)return n;"
            b"n=searched(e,t);if(n){let r=new Map,i=(e,t)=>{r.set(e.id,t);e.children?.forEach((e,n)=>i(e,[...t,n]))};"
            b"i(e,[]);pathsOf.set(e,r)}return n}",
        ),
    ),
}
"""By the script's name, what stands in it and what is served in its place."""
KEPT = "private, max-age=86400"
"""Not for ever: the same name may stand for other changes in another version of this program."""


def changed(script: bytes, changes: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The script with these changes, or as it is if one of them does not fit exactly once."""
    if any(script.count(found) != 1 for found, _ in changes):
        return script
    for found, served in changes:
        script = script.replace(found, served)
    return script


class GradioScriptsMiddleware:
    """Serves Gradio's scripts with the changes; other replies pass as they are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; websockets pass."""
        found = SCRIPT.search(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        changes = CHANGES[found[1]]
        plain = [
            (name, value) for name, value in scope["headers"] if name != b"accept-encoding"
        ]  # Gradio compresses too
        start: Message = {}
        parts: list[bytes] = []

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            parts.append(message.get("body", b""))
            if message.get("more_body"):
                return
            body = b"".join(parts)
            if start["status"] == 200:
                body = changed(body, changes)
                headers = MutableHeaders(raw=list(start["headers"]))
                headers["Content-Length"] = str(len(body))
                headers["Cache-Control"] = KEPT
                del headers["ETag"]
                start["headers"] = headers.raw
            await send(start)
            await send({"type": "http.response.body", "body": body})

        await self._app({**scope, "headers": plain}, receive, sent)


def write_no_interface_files() -> None:
    """Gradio writes a `.pyi` file beside each file with a component: only beside its own from now on."""
    from gradio import component_meta

    describe = component_meta.create_or_modify_pyi
    if describe.__module__ == component_meta.__name__:
        component_meta.create_or_modify_pyi = lambda made, *more: describe(made, *more) if is_gradios(made) else None


def is_gradios(made: type) -> bool:
    """Whether a class is Gradio's own: it writes a description beside the file of each class of components."""
    return made.__module__.partition(".")[0] == "gradio"
