"""The HTTP API on one FastAPI app; the page is mounted on the same app afterwards."""

from collections.abc import Callable, Sequence
from urllib.parse import quote

from fastapi import FastAPI, Request
from starlette._utils import get_route_path
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from modules.api.access.auth import PasswordCheck, install_auth
from modules.api.access.limits import install_limits
from modules.api.access.login import login_routes
from modules.api.access.permissions import METHODS, PREFIXES
from modules.api.generation.extras import extras_routes
from modules.api.generation.generation import generation_routes
from modules.api.generation.interrogate import interrogate_routes
from modules.api.generation.planning import planning_routes
from modules.api.history.boards import board_routes
from modules.api.history.history import history_routes
from modules.api.jobs.again import again_routes
from modules.api.jobs.progress import progress_routes
from modules.api.jobs.queue import queue_routes, worker_routes
from modules.api.program.about import about_routes
from modules.api.program.downloads import download_routes
from modules.api.program.extensions import CATCH_ALL, answers_everything, include_extension_routes, routes_of
from modules.api.program.extra_networks import extra_network_routes
from modules.api.program.lists import list_routes
from modules.api.program.memory import memory_routes
from modules.api.program.model_files import model_routes
from modules.api.program.options import option_routes
from modules.api.program.server import server_routes
from modules.api.program.tasks import task_routes
from modules.api.schema.docs_page import add_docs_page
from modules.api.schema.documentation import DESCRIPTION, TAGS, DescribedApi
from modules.api.schema.errors import install_error_handlers, reply
from modules.services import Services


def build_api(services: Services, on_stop: Callable[[], None] | None = None) -> FastAPI:
    """The app with all API routes. `on_stop` is called by the stop routes, which exist only with their flag."""
    app = DescribedApi(
        title="Featherweight",
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
        version=services.version,
        description=DESCRIPTION,
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
    )
    install_error_handlers(app)
    install_limits(app)
    checks = PasswordCheck()
    install_auth(app, services.access, services.flags.port, checks)
    app.include_router(login_routes(services, checks))
    app.include_router(generation_routes(services))
    app.include_router(extras_routes(services))
    app.include_router(interrogate_routes(services))
    app.include_router(progress_routes(services))
    app.include_router(option_routes(services))
    app.include_router(list_routes(services))
    app.include_router(server_routes(services, on_stop))
    app.include_router(memory_routes(services))
    app.include_router(planning_routes(services))
    app.include_router(task_routes(services))
    app.include_router(queue_routes(services))
    app.include_router(worker_routes(services))
    app.include_router(history_routes(services))
    app.include_router(board_routes(services))
    app.include_router(again_routes(services))
    app.include_router(about_routes(services))
    if services.downloads is not None:
        app.include_router(download_routes(services))
        app.include_router(model_routes(services))
    app.include_router(extra_network_routes(services))
    for routes in services.foreign.api_routes(services) if services.foreign is not None else ():
        app.include_router(routes)
    include_extension_routes(app, services)
    add_docs_page(app)
    _close_the_rest(app)
    return app


def _close_the_rest(app: FastAPI) -> None:
    """Answer requests that come near a route, and have a 404 with a sentence for API paths that do not exist; otherwise
    the page would answer them."""
    app.router.routes.append(NearRoute(app))
    for prefix in PREFIXES:

        @app.api_route(f"/{prefix}/{{path:path}}", methods=list(METHODS[:4]), include_in_schema=False)
        def missing(request: Request) -> None:
            path = request.url.path
            raise HTTPException(404, f"There is no {path} in this version. /docs lists what there is.")


class NearRoute(BaseRoute):
    """A route for requests that no other takes, but nearly: another method receives the right ones, a
    slash behind the path leads to the route without it."""

    path = f"/{CATCH_ALL}"

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._first_parts: tuple[int, frozenset[str]] = 0, frozenset()  # of all paths, and of how many routes they are

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match only what `handle` has an answer to, so that the page and later routes get everything else."""
        return (Match.FULL if scope["type"] == "http" and self._answer(scope) is not None else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with 405 or a redirect."""
        answer = self._answer(scope)
        assert answer is not None
        await answer(scope, receive, send)

    def _answer(self, scope: Scope) -> Response | None:
        path = get_route_path(scope)
        routes = [route for route in self._app.router.routes if not answers_everything(route)]
        if self._first_parts[0] != len(routes):
            paths = (path for route in routes for path, _ in routes_of(route))
            self._first_parts = len(routes), frozenset(path.split("/")[1] for path in paths)
        if path.split("/")[1] not in self._first_parts[1] or _takes(routes, scope):
            return None
        methods = [method for method in METHODS if _takes(routes, {**scope, "method": method})]
        if methods:
            text = f"{path} takes {' and '.join(methods)}, not {scope['method']}. /docs lists what there is."
            return reply(405, "HTTPException", text, headers={"Allow": ", ".join(methods)})
        short = scope["path"].removesuffix("/")
        if short == scope["path"] or short.endswith("/"):
            return None
        if not any(_takes(routes, {**scope, "path": short, "method": method}) for method in METHODS):
            return None
        query = scope["query_string"].decode("latin-1")
        # Relative, because a proxy may have other names for what comes before.
        place = f"../{quote(short.rpartition('/')[2])}{f'?{query}' if query else ''}"
        return RedirectResponse(place, 307)


def _takes(routes: Sequence[BaseRoute], scope: Scope) -> bool:
    return any(route.matches(scope)[0] is Match.FULL for route in routes)
