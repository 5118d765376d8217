"""What surrounds every request: a limit on its size, and the time it took."""

import time
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response

from modules.api.errors import reply

MAX_BODY_BYTES = 256 * 1024 * 1024


def install_limits(app: FastAPI) -> None:
    """Refuse bodies over 256 MB, and add X-Process-Time."""

    @app.middleware("http")
    async def measure(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            allowed = MAX_BODY_BYTES // 1024**2
            return reply(413, "InvalidValueError", f"The request has {length} bytes; allowed are {allowed} MB.")
        began = time.monotonic()
        response = await call_next(request)
        response.headers["X-Process-Time"] = f"{time.monotonic() - began:.4f}"
        return response
