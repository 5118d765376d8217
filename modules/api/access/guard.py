"""The door of the whole server, page and API alike: which names it answers to, which sites may call it, who is let in.

A web page of a stranger, open in the user's browser, can send requests to this machine. What it sends carries the
stranger's `Origin` or the browser's `Sec-Fetch-Site`, or, after DNS rebinding, the stranger's `Host`; programs that are
no browsers send none of the first two and are not hindered.
"""

import re
import secrets
import socket
from dataclasses import dataclass
from html import escape
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from modules.access import Access, is_loopback
from modules.access.auth_file import KEY_MARK
from modules.api.access.auth import TOO_MANY
from modules.api.access.permissions import API_PATHS
from modules.api.access.proxies import Proxies
from modules.api.schema.errors import reply
from modules.flags.flags import Flags

COOKIE = "featherweight-token"
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
JSON_PATHS = (*API_PATHS, "/gradio_api/")
UPLOAD_PATHS = ("/gradio_api/upload",)
OTHER_SITES = ("cross-site", "same-site")


@dataclass(frozen=True)
class Names:
    """The names that this server may have, from the flags."""

    host: str  # the address it listens on
    extra: frozenset[str] = frozenset()

    @classmethod
    def of(cls, flags: Flags) -> "Names":
        """The bound address, --allow-host, and where every address is bound the name of this machine."""
        extra = {name.strip().lower().rstrip(".") for name in flags.allow_host}
        if not is_loopback(flags.host):
            own = socket.gethostname().lower()
            extra |= {own, f"{own}.local"}
        return cls(flags.host.strip("[]").lower(), frozenset(extra))

    def includes(self, host: str) -> bool:
        """Whether a `Host` header (name or address, with or without port) may mean this server.

        An address cannot be rebound, so a server that answers on every address takes any; names must be known.
        """
        name = host_name(host)
        if not name:
            return False
        if is_loopback(name) or name == self.host or name in self.extra:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return not is_loopback(self.host)


@dataclass(frozen=True)
class Origins:
    """The foreign origins that may call, from the CORS flags."""

    listed: tuple[str, ...] = ()
    pattern: str | None = None

    @classmethod
    def of(cls, flags: Flags) -> "Origins":
        """--cors-allow-origins and --cors-allow-origins-regex."""
        listed = (origin.strip().rstrip("/") for origin in (flags.cors_allow_origins or "").split(","))
        return cls(tuple(origin for origin in listed if origin), flags.cors_allow_origins_regex)

    def include(self, origin: str) -> bool:
        """Whether this origin may call."""
        by_pattern = self.pattern is not None and re.fullmatch(self.pattern, origin) is not None
        return "*" in self.listed or origin in self.listed or by_pattern


class Guard:
    """The ASGI middleware around everything else. It refuses with a sentence, makes all cookies strict, and keeps other
    sites from showing the page inside of theirs."""

    def __init__(self, app: ASGIApp, names: Names, origins: Origins, access: Access, proxies: Proxies) -> None:
        self._app = app
        self._names = names
        self._origins = origins
        self._access = access
        self._proxies = proxies
        self._policy = page_policy(origins)
        self._throttle = access.throttle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope = _below_subpath(self._proxies.heard(scope, self._names.includes))
        connection = HTTPConnection(scope)
        address = connection.client.host if connection.client else ""
        refusal = self._refusal(connection, address)
        root = scope.get("root_path", "")
        if refusal is None and root and scope["path"] == root and scope["type"] == "http":
            refusal = RedirectResponse(f"{root.rpartition('/')[2]}/", 307)  # relative, as the links of the page
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        state = getattr(scope.get("app"), "state", None)  # asked now: an app that is mounted puts itself there
        shown: tuple[str, ...] = getattr(state, "extension_frames", ())

        async def send_strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                _make_cookies_strict(message)
                self._protect_page(message, shown)
            await send(message)

        await self._app(scope, receive, send_strict)

    def _protect_page(self, message: Message, shown: tuple[str, ...]) -> None:
        """A page says what it may load and who may show it inside of another, unless its route has said so already.
        `shown` are the sites whose frames user extensions show in it."""
        headers = MutableHeaders(scope=message)
        if not headers.get("content-type", "").startswith("text/html"):
            return
        policy = self._policy.replace("frame-src 'self'", " ".join(("frame-src 'self'", *shown)))
        headers.setdefault("Content-Security-Policy", policy)
        headers.setdefault("X-Content-Type-Options", "nosniff")
        if not self._origins.listed and self._origins.pattern is None:
            headers.setdefault("X-Frame-Options", "SAMEORIGIN")

    def _refusal(self, connection: HTTPConnection, address: str) -> Response | None:
        """Return the reply to a request that is refused, else None."""
        return (
            self._foreign(connection)
            or self._form(connection)
            or (self._without_token(connection, address) if self._access.token else None)
        )

    def _foreign(self, connection: HTTPConnection) -> Response | None:
        headers = connection.headers
        host = headers.get("host", "")
        if len(headers.getlist("host")) > 1 or not self._names.includes(host):
            return _refused(
                f"This server does not answer to the name {host_name(host)!r}. If that is a name of yours, as behind a "
                "reverse proxy, start it with --allow-host NAME."
            )
        origin = headers.get("origin")
        if origin is not None and self._is_foreign(origin, host) and not self._origins.include(origin):
            return _refused(
                f"A page of {origin} may not call this server. If it is yours, start the server with "
                f"--cors-allow-origins {origin}; if a reverse proxy shows this server there, with --allow-host "
                f"{host_name(urlsplit(origin).netloc) or 'NAME'}."
            )
        if origin is None and headers.get("sec-fetch-site") in OTHER_SITES and not _is_visit(connection):
            return _refused("Another site's page may not use what this server holds (Sec-Fetch-Site).")
        return None

    def _is_foreign(self, origin: str, host: str) -> bool:
        """Whether an origin is another one than the server's. A reverse proxy may have changed `Host`, so that names of
        --allow-host are its own too."""
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            return True
        default = {"http": ":80", "https": ":443"}[parts.scheme]
        own = parts.netloc.lower().removesuffix(default) == host.lower().removesuffix(default)
        return not own and host_name(parts.netloc) not in self._names.extra

    def _form(self, connection: HTTPConnection) -> Response | None:
        """Forms can be sent by any page without the browser asking first; where JSON is expected they are refused."""
        path = _path(connection)
        media_type = connection.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in FORM_TYPES or not path.startswith(JSON_PATHS) or path.startswith(UPLOAD_PATHS):
            return None
        text = (
            f"The body is {media_type}; this route takes JSON. Send it with the header Content-Type: application/json."
        )
        return reply(415, "InvalidValueError", text)

    def _without_token(self, connection: HTTPConnection, address: str) -> Response | None:
        """None for who has the token, or an API key; whoever brings it in the address gets a cookie, and the address
        without it."""
        if _same(connection.cookies.get(COOKIE), self._access.token):
            return None
        scheme, _, credentials = connection.headers.get("authorization", "").partition(" ")
        given = connection.query_params.get("token")
        is_bearer = scheme.lower() == "bearer"
        wait_s = self._throttle.wait_s(address) if is_bearer or given is not None else 0
        if wait_s:
            return reply(429, "HTTPException", TOO_MANY.format(wait_s), headers={"Retry-After": str(wait_s)})
        if is_bearer:
            key = credentials.strip()
            if _same(key, self._access.token):
                return None
            if key.startswith(KEY_MARK) and self._access.by_key(key) is not None:
                return None
            self._throttle.failed(address)
        if _same(given, self._access.token):
            return _entered(connection, self._access.token) if _is_page_visit(connection) else None
        if given is not None:
            self._throttle.failed(address)
        text = (
            "This server needs its token: open the address that it printed at start, which ends in ?token=..., or send "
            "the header Authorization: Bearer TOKEN."
        )
        return reply(401, "Unauthorized", text)


def install_guard(app: FastAPI, flags: Flags, access: Access) -> None:
    """Put the guard around everything that `app` serves, the mounted page included; to be called last.

    The CORS middleware stands inside of it always, with no origins where no flag names any: Gradio's own, which allows
    more, keeps silent where it finds one.
    """
    origins = Origins.of(flags)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(origins.listed),
        allow_origin_regex=origins.pattern,
        allow_methods=["*"] if origins != Origins() else [],
        allow_headers=["*"] if origins != Origins() else [],
        allow_credentials=origins != Origins(),
    )
    proxies = Proxies(flags.trusted_proxy)
    app.add_middleware(Guard, names=Names.of(flags), origins=origins, access=access, proxies=proxies)


def page_policy(origins: Origins) -> str:
    """The Content-Security-Policy of pages. Gradio's scripts and styles stand inline, and it makes functions of texts;
    everything comes from this server. Origins that may call (CORS) may also show the page inside of theirs."""
    frames = " ".join(("'self'", *origins.listed)) if origins.pattern is None else "*"
    return (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; "
        "connect-src 'self' data: blob:; worker-src 'self' blob:; frame-src 'self' blob: data:; object-src 'none'; "
        f"base-uri 'self'; form-action 'self'; frame-ancestors {frames}"
    )


def _below_subpath(scope: Scope) -> Scope:
    """The request as if its proxy had taken --subpath off, which the server puts before every path; some proxies do
    not."""
    root = scope.get("root_path", "")
    if not root or not f"{scope['path']}/".startswith(f"{root}{root}/"):
        return scope
    raw = scope.get("raw_path") or b""
    return {**scope, "path": scope["path"].removeprefix(root), "raw_path": raw.removeprefix(root.encode())}


def host_name(host: str) -> str:
    """The name in a `Host` header, without port and brackets, in lower case; "" for what is none."""
    try:
        return (urlsplit(f"//{host.strip()}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _path(connection: HTTPConnection) -> str:
    path: str = connection.scope["path"]
    return path.removeprefix(connection.scope.get("root_path", "").rstrip("/"))


def _is_visit(connection: HTTPConnection) -> bool:
    """Whether the user followed a link to here: the one thing that may come from another site."""
    headers = connection.headers
    is_top = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest", "document") == "document"
    return connection.scope.get("method") in ("GET", "HEAD") and is_top


def _is_page_visit(connection: HTTPConnection) -> bool:
    return connection.scope.get("method") == "GET" and "text/html" in connection.headers.get("accept", "")


def _entered(connection: HTTPConnection, token: str) -> Response:
    """A page that goes on to the same address without the token, which is in a cookie from now on.

    No redirect: to that the browser would not add a strict cookie where another site's link led here.
    """
    kept = urlencode([(name, value) for name, value in parse_qsl(connection.url.query) if name != "token"])
    page = f'<!doctype html><title>Featherweight</title><meta http-equiv="refresh" content="0; url=?{escape(kept)}">'
    response = HTMLResponse(page, headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
    is_https = connection.url.scheme == "https"
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=is_https, path="/")
    return response


def _same(given: str | None, wanted: str) -> bool:
    return given is not None and secrets.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _refused(text: str) -> Response:
    return reply(403, "Forbidden", text)


def _make_cookies_strict(message: Message) -> None:
    """No cookie of this server is sent along with another site's requests."""
    headers = MutableHeaders(scope=message)
    cookies = headers.getlist("set-cookie")
    if not cookies:
        return
    del headers["set-cookie"]
    for cookie in cookies:
        parts = [part for part in cookie.split(";") if part.strip().partition("=")[0].lower() != "samesite"]
        headers.append("set-cookie", f"{';'.join(parts)}; SameSite=Strict")
