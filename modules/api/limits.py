"""What surrounds every request: a limit on its size, the time it took, and who may call from another origin."""

import time
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware

from modules.api.errors import reply
from modules.flags.flags import Flags

MAX_BODY_BYTES = 256 * 1024 * 1024


def install_limits(app: FastAPI, flags: Flags) -> None:
    """Refuse bodies over 256 MB, add X-Process-Time, and allow the origins of the CORS flags."""

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

    if flags.cors_allow_origins or flags.cors_allow_origins_regex:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[o.strip() for o in (flags.cors_allow_origins or "").split(",") if o.strip()],
            allow_origin_regex=flags.cors_allow_origins_regex,
            allow_methods=["*"],
            allow_headers=["*"],
            allow_credentials=True,
        )
