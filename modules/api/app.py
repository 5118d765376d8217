"""The HTTP API on one FastAPI app; the page is mounted on the same app afterwards."""

from collections.abc import Callable

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException

from modules.api.about import about_routes
from modules.api.again import again_routes
from modules.api.auth import PasswordCheck, install_auth
from modules.api.boards import board_routes
from modules.api.docs_page import add_docs_page
from modules.api.documentation import DESCRIPTION, TAGS, DescribedApi
from modules.api.downloads import download_routes
from modules.api.errors import install_error_handlers
from modules.api.extra_networks import extra_network_routes
from modules.api.extras import extras_routes
from modules.api.generation import generation_routes
from modules.api.history import history_routes
from modules.api.interrogate import interrogate_routes
from modules.api.limits import install_limits
from modules.api.line_access import LineAccess
from modules.api.lists import list_routes
from modules.api.login import login_routes
from modules.api.memory import memory_routes
from modules.api.model_files import model_routes
from modules.api.options import option_routes
from modules.api.planning import planning_routes
from modules.api.precision import precision_routes
from modules.api.progress import progress_routes
from modules.api.queue import queue_routes, worker_routes
from modules.api.server import server_routes
from modules.api.takeover import takeover_routes
from modules.api.tasks import task_routes
from modules.api.training import training_routes
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
    app.include_router(training_routes(services))
    app.include_router(queue_routes(services))
    app.include_router(worker_routes(services))
    app.include_router(history_routes(services))
    app.include_router(board_routes(services))
    app.include_router(again_routes(services))
    app.include_router(precision_routes(services))
    app.include_router(about_routes(services))
    app.include_router(takeover_routes(services))
    if services.downloads is not None:
        app.include_router(download_routes(services))
        app.include_router(model_routes(services))
    app.include_router(extra_network_routes(services))
    for routes in services.foreign.api_routes(services) if services.foreign is not None else ():
        app.include_router(routes)
    app.state.line = LineAccess(services)  # for routes of extensions
    add_docs_page(app)
    _close_the_rest(app)
    return app


def _close_the_rest(app: FastAPI) -> None:
    """A 404 with a sentence for API paths that do not exist; otherwise the page would answer them."""

    for prefix in ("sdapi", "featherweight", "agent-scheduler"):

        @app.api_route(f"/{prefix}/{{path:path}}", methods=["GET", "POST", "PUT", "DELETE"], include_in_schema=False)
        def missing(request: Request) -> None:
            path = request.url.path
            raise HTTPException(404, f"There is no {path} in this version. /docs lists what there is.")
