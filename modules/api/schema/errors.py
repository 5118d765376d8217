"""The one place where our errors become HTTP replies: status, class name and the same sentence a page would show."""

import json
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette._utils import get_route_path
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from modules.errors import FeatherweightError

log = logging.getLogger(__name__)

FASTAPI_UNPARSED = "There was an error parsing the body"
"""What FastAPI says of a body that breaks its parser in another way than bad JSON does."""


class ErrorReply(JSONResponse):
    """JSON in ASCII: what an error quotes may hold half of a character, which UTF-8 cannot say."""

    content: Any

    def render(self, content: Any) -> bytes:
        self.content = content
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; for paths of another API, which `app.state.error_shapes` names, in the shape of its errors."""
        shapes = getattr(getattr(scope.get("app"), "state", None), "error_shapes", {})
        for start, shape in shapes.items():
            if get_route_path(scope).startswith(start):
                self.status_code, content, headers = shape(self.status_code, self.content)
                self.body = self.render(content)
                self.headers.update({**headers, "content-length": str(len(self.body))})
        await super().__call__(scope, receive, send)


def reply(status: int, name: str, text: str, headers: dict[str, str] | None = None, detail: Any = None) -> JSONResponse:
    """An error reply in the shape the reference UI's clients read: error, detail, body, errors."""
    content = {"error": name, "detail": text if detail is None else detail, "body": "", "errors": text}
    return ErrorReply(content, status_code=status, headers=headers)


def install_error_handlers(app: FastAPI) -> None:
    """Map our errors, validation errors and HTTP errors; anything else is an internal error: logged, 500."""

    @app.exception_handler(FeatherweightError)
    def ours(request: Request, error: FeatherweightError) -> JSONResponse:
        return reply(error.status, type(error).__name__, str(error))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = [f"{_place(item['loc'])}: {item['msg']}" for item in error.errors()]
        text = f"The request cannot be used: {'; '.join(problems)}."
        details = [{key: item[key] for key in ("loc", "msg", "type")} for item in error.errors()]
        return reply(422, "InvalidValueError", text, detail=jsonable_encoder(details))

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> JSONResponse:
        text = _unparsed(error) if error.detail == FASTAPI_UNPARSED else str(error.detail)
        return reply(error.status_code, "HTTPException", text, headers=dict(error.headers or {}))

    @app.exception_handler(Exception)
    def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.exception("%s %s failed", request.method, request.url.path)
        text = f"Internal error: {type(error).__name__}: {error}. The log says more."
        return reply(500, type(error).__name__, text)


def _unparsed(error: HTTPException) -> str:
    reason = str(error.__cause__ or "no reason is known").rstrip(".")
    return f"The body cannot be read: {reason}. Send JSON in UTF-8, or what /docs shows for this route."


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location if part != "body") or "body"
