"""Who may call the API: HTTP Basic, or for the page's own calls its session. Without users any header is fine."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response

from modules.access import Access
from modules.api.errors import reply

GUARDED = (
    "/sdapi/",
    "/featherweight/",
    "/internal/",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/file-of/",
    "/sd_extra_networks/",
    "/agent-scheduler/",
)
FOR_THE_PAGE = (
    "/internal/",
    "/file-of/",
    "/sdapi/v1/png-info",
    "/sdapi/v1/interrogate",
    "/featherweight/v1/reports/",
    "/featherweight/v1/queue",
    "/featherweight/v1/history",
)
"""What the page's script calls: open to whoever is logged in there, also where the API has users of its own."""

SessionUser = Callable[[Request], str | None]
"""The user who is logged in on the page that sent a request, if any."""


def install_auth(app: FastAPI, access: Access) -> None:
    """Guard all of the API's paths with the users of `access`.

    The page, when it is mounted, leaves a `SessionUser` in `app.state.session_user`.
    """
    if not access.api:
        return

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        # Behind --subpath the server puts the prefix before every path.
        path = request.url.path.removeprefix(request.scope.get("root_path", "").rstrip("/"))
        if path.startswith((*GUARDED, *_extension_paths(request))) and not _may_enter(request, path, access):
            text = "This API needs a user and password (HTTP Basic, see --api-auth and --gradio-auth)."
            return reply(401, "Unauthorized", text, headers={"WWW-Authenticate": "Basic"})
        return await call_next(request)


def user_of(request: Request, access: Access) -> str:
    """Who sent a request: the user of its header, else of the page's session; empty without users."""
    session_user: SessionUser | None = getattr(request.app.state, "session_user", None)
    by_session = session_user(request) if session_user is not None else None
    return access.api.user_of(request.headers.get("authorization")) or by_session or ""


def _extension_paths(request: Request) -> tuple[str, ...]:
    """What extensions serve; `add_extension_routes` leaves it."""
    found: tuple[str, ...] = getattr(request.app.state, "extension_paths", ())
    return found


def _may_enter(request: Request, path: str, access: Access) -> bool:
    if access.api.accepts_header(request.headers.get("authorization")):
        return True
    session_user: SessionUser | None = getattr(request.app.state, "session_user", None)
    for_the_page = (*FOR_THE_PAGE, *_extension_paths(request))
    if session_user is None or not (access.shares_users or path.startswith(for_the_page)):
        return False
    return session_user(request) is not None
