"""Who sent a request, and whether they may: the door in front of every route, stream and file, the page's included.

HTTP Basic and API keys for programs, a session for the page. Without users everybody is an admin.
"""

import asyncio
import logging
from collections.abc import Callable

from fastapi import FastAPI, Request
from starlette._utils import get_route_path
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from modules.access import Access
from modules.access.access import basic_credentials
from modules.access.auth_file import KEY_MARK
from modules.access.roles import ANYBODY, Identity, NotAllowedError
from modules.api.access.permissions import OpenRoute, Rule, Zone, rule_for, zone_of
from modules.api.schema.errors import reply

log = logging.getLogger(__name__)

MAX_CHECKS, MAX_WAITING = 2, 32  # of passwords at once: each takes memory and time
IDENTITY = "identity"
NEEDED = (
    "This API needs a user and password (HTTP Basic, see --auth-file, --api-auth and --gradio-auth) or an API key "
    "(Authorization: Bearer KEY, see launch.py user key)."
)
TOO_MANY = "Too many wrong passwords came from your address. Wait {} s, then try again."


def session_cookie(port: int) -> str:
    """The cookie's name. Browsers share cookies among the ports of a machine, so that it tells servers apart."""
    return f"featherweight-session-{port}"


def identity_of(request: HTTPConnection) -> Identity:
    """Who sent a request that the door let in."""
    found: Identity = request.scope.get("state", {}).get(IDENTITY, ANYBODY)
    return found


def user_of(request: Request) -> str:
    """The name of who sent a request; empty without users."""
    return identity_of(request).name


class PasswordCheck:
    """Checks passwords in threads, a few at a time."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_CHECKS)
        self._waiting = 0

    async def run(self, check: Callable[[str, str], Identity | None], name: str, password: str) -> Identity | None:
        """Return what `check` answers. Raises `TimeoutError` if too many requests wait already."""
        if self._waiting >= MAX_WAITING:
            raise TimeoutError
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(check, name, password)
        finally:
            self._waiting -= 1


def install_auth(app: FastAPI, access: Access, port: int, checks: PasswordCheck) -> None:
    """Put the door in front of what `app` serves, now and later, where there are users."""
    app.state.open_routes = ()
    if access.page_is_closed or access.api_is_closed:
        app.add_middleware(Door, state=app.state, access=access, port=port, checks=checks)


class Door:
    """The ASGI middleware. It leaves an `Identity` in the request's state, or refuses with a sentence."""

    def __init__(self, app: ASGIApp, state: object, access: Access, port: int, checks: PasswordCheck) -> None:
        self._app = app
        self._state = state
        self._access = access
        self._cookie = session_cookie(port)
        self._checks = checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        path = get_route_path(scope) or "/"
        more: tuple[OpenRoute, ...] = getattr(self._state, "open_routes", ())
        rule = rule_for(str(scope.get("method", "WEBSOCKET")), path, more)
        refusal = None if rule.least is None else await self._refusal(connection, path, rule)
        await (refusal or self._app)(scope, receive, send)

    async def _refusal(self, connection: HTTPConnection, path: str, rule: Rule) -> Response | None:
        """Return the reply to a request that is refused; otherwise put the `Identity` into its state."""
        extensions: tuple[str, ...] = getattr(self._state, "extension_paths", ())
        zone = zone_of(path, extensions)
        identity = await self._identity(connection, zone, rule)
        if isinstance(identity, Response):
            return identity
        if identity is None:
            return self._closed(connection, zone)
        try:
            assert rule.least is not None
            identity.require(rule.least, f"{connection.scope.get('method', 'GET')} {path}")
        except NotAllowedError as error:
            return reply(error.status, type(error).__name__, str(error))
        page = (rule.parameters or {}).get("session_hash") or connection.query_params.get("session_hash")
        if page and path.startswith("/gradio_api/") and not self._access.sessions.claims(page, identity.name):
            return reply(403, "NotAllowedError", "This stream belongs to another user's page. Reload your page.")
        connection.scope.setdefault("state", {})[IDENTITY] = identity
        return None

    async def _identity(self, connection: HTTPConnection, zone: Zone, rule: Rule) -> Identity | Response | None:
        """Who asks, as far as they may ask in this zone; a reply for who may not even try."""
        access = self._access
        if not (access.page_is_closed if zone is Zone.PAGE else access.api_is_closed):
            return ANYBODY
        secret = connection.cookies.get(self._cookie)
        found = access.of_session(secret, not rule.is_looking) if secret else None
        if found is not None and not (zone is Zone.API and found.is_of_page):
            return found
        header = connection.headers.get("authorization")
        return await self._by_header(connection, header, zone) if header is not None else None

    async def _by_header(self, connection: HTTPConnection, header: str, zone: Zone) -> Identity | Response | None:
        access = self._access
        address = connection.client.host if connection.client else ""
        scheme, _, key = header.partition(" ")
        is_key = scheme.lower() == "bearer" and key.strip().startswith(KEY_MARK)
        given = basic_credentials(header)
        name, password = given or ("", "")
        wait_s = access.throttle.wait_s(address, name)
        if wait_s:
            return reply(429, "HTTPException", TOO_MANY.format(wait_s), headers={"Retry-After": str(wait_s)})
        if is_key:
            found = access.by_key(key.strip())
        elif given is not None:
            found = access.by_password_at_once(name, password)
            if found is None:
                try:
                    found = await self._checks.run(access.by_password, name, password)
                except TimeoutError:
                    return reply(503, "BusyError", "Too many logins at once; try again in a moment.")
        else:
            return None  # nothing that could be guessed right, or the token of --access-token, which the guard has seen
        if found is None:
            access.throttle.failed(address, name)
            return None
        access.throttle.succeeded(address, name)
        of_api_only = name in access.api.names and not access.shares_users
        return None if zone is Zone.PAGE and of_api_only else found

    def _closed(self, connection: HTTPConnection, zone: Zone) -> Response:
        access = self._access
        asks_page = connection.scope.get("method") == "GET" and "text/html" in connection.headers.get("accept", "")
        leads_in = access.page_is_closed and (zone is not Zone.API or access.shares_users)
        if asks_page and leads_in:
            root = connection.scope.get("root_path", "").rstrip("/")
            return RedirectResponse(f"{root}/login", 303, headers={"Cache-Control": "no-store"})
        # A page that calls shows the answer by its own script; the browser's window for passwords would be in the way.
        is_script = access.page_is_closed and connection.headers.get("sec-fetch-mode") in ("cors", "same-origin")
        headers = None if is_script else {"WWW-Authenticate": "Basic"}
        return reply(401, "Unauthorized", NEEDED, headers=headers)
