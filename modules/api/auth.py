"""HTTP Basic for every route of the API, when --api-auth asks for it; without it any Authorization header is fine."""

import base64
import binascii
import secrets
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response

from modules.api.errors import reply

GUARDED = ("/sdapi/", "/internal/", "/docs", "/redoc", "/openapi.json", "/file-of/")


def install_auth(app: FastAPI, credentials: str | None) -> None:
    """Guard all of the API's paths with the `user:password[,user:password]` pairs of `credentials`."""
    if not credentials:
        return
    accepted = [pair.strip().encode() for pair in credentials.split(",") if pair.strip()]

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.url.path.startswith(GUARDED) and not _is_accepted(request.headers.get("authorization"), accepted):
            text = "This API needs a user and password (HTTP Basic, see --api-auth)."
            return reply(401, "Unauthorized", text, headers={"WWW-Authenticate": "Basic"})
        return await call_next(request)


def _is_accepted(header: str | None, accepted: list[bytes]) -> bool:
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return False
    try:
        given = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return False
    # Every pair is compared, so that the time says nothing about which one was nearly right.
    matches = [secrets.compare_digest(given, pair) for pair in accepted]
    return any(matches)
