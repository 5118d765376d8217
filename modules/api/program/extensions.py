"""Routes that extensions add to the app when it is built, reachable before the page, guarded as ours are."""

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import FastAPI
from starlette.routing import compile_path

from modules.access.roles import Role, role_of_function
from modules.api.access.permissions import API_PATHS, METHODS, OpenRoute
from modules.scripts.callbacks import Callbacks, Moment
from modules.services import Services

ANY_METHOD = (*METHODS, "WEBSOCKET")
CATCH_ALL = "{path:path}"


def include_extension_routes(app: FastAPI, services: Services) -> None:
    """Call the `on_api` callbacks with the app, whose own routes are there, and what they work with. Roles and users
    are asked for as in `add_extension_routes`."""
    routes = app.router.routes
    known = {id(route) for route in routes}
    services.scripts.callbacks.call(Moment.API, app, services)
    _guard(app, [route for route in routes if id(route) not in known])


def add_extension_routes(app: FastAPI, callbacks: Callbacks, page: Any) -> None:
    """Call the `on_app_started` callbacks with the page (None: there is none) and the app.

    What they add would stand behind the page, which answers every path; it is put before that, and behind our own
    routes, which an extension cannot replace. Where users are set, they are asked for these paths too; what stands
    among the API's own paths is for the API's users. Routes are for admins, unless `open_to` stands at their function.
    """
    routes = app.router.routes
    before = list(routes)
    known = {id(route) for route in before}
    callbacks.call(Moment.APP_STARTED, page, app)
    added = [route for route in routes if id(route) not in known]
    if not added:
        return
    end = next((at for at, route in enumerate(before) if answers_everything(route)), len(before))
    routes[:] = [*before[:end], *added, *before[end:]]
    app.openapi_schema = None
    _guard(app, added)


def _guard(app: FastAPI, added: Sequence[Any]) -> None:
    """Have routes of extensions ask for users and roles."""
    found = [one for route in added for one in routes_of(route)]
    paths = (path.partition("{")[0] for path, _ in found)
    own_paths = tuple(path for path in paths if path not in ("", "/") and not path.startswith(API_PATHS))
    app.state.extension_paths = (*getattr(app.state, "extension_paths", ()), *own_paths)
    open_routes = tuple(_open_route(path, route) for path, route in found)
    app.state.open_routes = (*getattr(app.state, "open_routes", ()), *open_routes)


def routes_of(route: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A route with its path; all that an included router has, which FastAPI keeps as one route without a path."""
    if hasattr(route, "path"):
        yield prefix + route.path, route
        return
    inner = prefix + route.include_context.prefix
    for one in route.original_router.routes:
        yield from routes_of(one, inner)


def _open_route(path: str, route: Any) -> OpenRoute:
    """Who may use a route of an extension. A mounted app is for admins, with all below."""
    is_mount = not hasattr(route, "methods") and hasattr(route, "app")
    pattern = compile_path(f"{path.rstrip('/')}/{{path:path}}" if is_mount else path)[0]
    methods = frozenset(getattr(route, "methods", None) or ANY_METHOD)
    return OpenRoute(methods, pattern, role_of_function(getattr(route, "endpoint", None)) or Role.ADMIN)


def answers_everything(route: Any) -> bool:
    """Whether a route is the page, or one for all paths that there are not."""
    path = getattr(route, "path", None)
    return path in ("", "/") or str(path).endswith(CATCH_ALL)
