"""Calls of the page's functions that name none: a sentence instead of Gradio's bare 500."""

import logging

from fastapi import Request, Response
from gradio.route_utils import FnIndexInferError
from gradio.routes import App as GradioApp

from modules.api.errors import reply

log = logging.getLogger(__name__)

CALLS = ("/queue/join", "/run/", "/api/", "/call/", "/component_server")
"""Gradio's routes that look a function up. What the function itself raises does not leave them: it becomes the
function's result."""


def refuse_unknown_calls(page: GradioApp) -> None:
    """Answer 404 where a call names a function, or arguments, that the page does not have."""

    def unknown(request: Request, error: Exception) -> Response:
        path = request.url.path.partition("/gradio_api")[2]
        if not path.startswith(CALLS):
            raise error
        log.info("%s %s names no function of the page: %r", request.method, request.url.path, error)
        text = (
            "The page has no such function, or not with these arguments. If the server was restarted, reload the page."
        )
        return reply(404, "UnknownNameError", text)

    for error_type in (KeyError, FnIndexInferError, TypeError, ValueError):
        page.add_exception_handler(error_type, unknown)
