"""Calls of the page's functions that name none, or that the caller may not make: a sentence instead of Gradio's bare
500, and before anything of another user's page hears of it."""

import logging
import re
from typing import Any

from fastapi import Request, Response
from gradio.route_utils import FnIndexInferError
from gradio.routes import App as GradioApp
from pydantic import TypeAdapter, ValidationError
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from modules.access.roles import NotAllowedError
from modules.api.access.auth import identity_of
from modules.api.schema.errors import reply
from modules.services import Services
from modules.system.bounded import read_json
from modules.system.texts import page_text
from modules.ui.common.callers import least_role

log = logging.getLogger(__name__)

FUNCTIONS = ("/queue/join", "/run/", "/api/", "/call/")
STREAM = re.compile(r"/call/(?:v2/)?[^/]+/(?P<event>[^/]+)")
NUMBER: TypeAdapter[int | None] = TypeAdapter(int | None)
"""Reads the number of a function as Gradio does: "3" and 3.0 are 3."""
CALLS = (*FUNCTIONS, "/component_server")
"""Gradio's routes that look a function up. What the function itself raises does not leave them: it becomes the
function's result."""


def refuse_unknown_calls(page: GradioApp, services: Services) -> None:
    """Answer 404 where a call names a function, or arguments, that the page does not have, and 403 where its caller's
    role may not make it, or the page that it names is another user's."""

    def unknown(request: Request, error: Exception) -> Response:
        path = request.url.path.partition("/gradio_api")[2]
        if not path.startswith(CALLS):
            raise error
        log.info("%s %s names no function of the page: %r", request.method, request.url.path, error)
        return _no_such_function()

    page.add_middleware(KnownStreams, page=page)
    for error_type in (KeyError, FnIndexInferError, TypeError, ValueError):
        page.add_exception_handler(error_type, unknown)
    if services.access.page_is_closed:
        page.add_middleware(AllowedCalls, page=page, services=services)


def _no_such_function() -> JSONResponse:
    text = page_text(
        "The page has no such function, or not with these arguments. If the server was restarted, reload the page."
    )
    return reply(404, "UnknownNameError", text)


class KnownStreams:
    """ASGI middleware that answers 404 where the stream of a call is asked for that nobody made. Gradio finds that out
    when its reply has begun, which ends as an internal error."""

    def __init__(self, app: ASGIApp, page: GradioApp) -> None:
        self._app = app
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = STREAM.fullmatch(str(scope.get("path", "")).partition("/gradio_api")[2])
        if scope["type"] == "http" and scope["method"] == "GET" and asked and not self._is_known(asked["event"]):
            await _no_such_function()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_known(self, event: str) -> bool:
        queue = self._page.get_blocks()._queue
        sessions = queue.pending_event_ids_session.values()
        return event in queue.event_ids_to_events or any(event in events for events in sessions)


class AllowedCalls:
    """ASGI middleware inside of the door: looks into the body of a call for the function and the page that it names."""

    def __init__(self, app: ASGIApp, page: GradioApp, services: Services) -> None:
        self._app = app
        self._page = page
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", "")).partition("/gradio_api")[2]
        if scope["type"] != "http" or scope["method"] != "POST" or not path.startswith(FUNCTIONS):
            await self._app(scope, receive, send)
            return
        parts: list[bytes] = []
        message = await receive()
        while message["type"] == "http.request":
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
            message = await receive()
        body = b"".join(parts)
        try:
            self._check(HTTPConnection(scope), path, body)
        except NotAllowedError as error:
            await JSONResponse({"error": str(error), "detail": str(error)}, error.status)(scope, receive, send)
            return
        is_given = False

        async def again() -> Message:
            nonlocal is_given
            if is_given or message["type"] != "http.request":
                return message if message["type"] != "http.request" else await receive()
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)

    def _check(self, connection: HTTPConnection, path: str, body: bytes) -> None:
        """Raise `NotAllowedError`, also for what cannot be read here: Gradio might read it in another way."""
        if not body:
            return
        try:
            called = read_json(body, max_bytes=len(body))
        except ValueError as error:
            raise NotAllowedError(f"This call of the page cannot be read: {error}.") from error
        if not isinstance(called, dict):
            return
        identity = identity_of(connection)
        function = self._function(path, called)
        if function is not None:
            identity.require(least_role(function.fn), "This function of the page")
        session = called.get("session_hash")
        if isinstance(session, str) and not self._services.access.sessions.claims(session, identity.name):
            raise NotAllowedError("This is another user's page. Reload yours.")

    def _function(self, path: str, called: dict[str, Any]) -> Any:
        functions = self._page.get_blocks().fns
        try:
            index = NUMBER.validate_python(called.get("fn_index"))
        except ValidationError:  # Gradio refuses it too
            return None
        if index is not None:
            return functions.get(index)
        name = path.strip("/").rpartition("/")[2]
        return next((function for function in functions.values() if function.api_name == name), None)
