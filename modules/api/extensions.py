"""Routes that extensions add to the app when it is built, reachable before the page, guarded as ours are."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from modules.api.auth import GUARDED
from modules.scripts.callbacks import Callbacks, Moment

CATCH_ALL = "{path:path}"


def add_extension_routes(app: FastAPI, callbacks: Callbacks, page: Any) -> None:
    """Call the `on_app_started` callbacks with the page (None: there is none) and the app.

    What they add would stand behind the page, which answers every path; it is put before that, and behind our own
    routes, which an extension cannot replace. Where users are set, they are asked for these paths too; what stands
    among the API's own paths is for the API's users.
    """
    routes = app.router.routes
    before = list(routes)
    known = {id(route) for route in before}
    callbacks.call(Moment.APP_STARTED, page, app)
    added = [route for route in routes if id(route) not in known]
    if not added:
        return
    end = next((at for at, route in enumerate(before) if _answers_everything(route)), len(before))
    routes[:] = [*before[:end], *added, *before[end:]]
    app.openapi_schema = None
    paths = (path.partition("{")[0] for route in added for path in _paths_of(route))
    app.state.extension_paths = tuple(path for path in paths if path not in ("", "/") and not path.startswith(GUARDED))


def _paths_of(route: Any, prefix: str = "") -> Iterator[str]:
    """The paths of a route; those of all that an included router has, which FastAPI keeps as one route without a
    path."""
    if hasattr(route, "path"):
        yield prefix + route.path
        return
    inner = prefix + route.include_context.prefix
    for one in route.original_router.routes:
        yield from _paths_of(one, inner)


def _answers_everything(route: Any) -> bool:
    path = getattr(route, "path", None)
    return path in ("", "/") or str(path).endswith(CATCH_ALL)
