"""Reload UI: the page is built again, with changed defaults, themes and tabs, while server, queue and model go on."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.metadata import Distribution, distributions

import gradio as gr
from fastapi import APIRouter, FastAPI
from gradio.routes import App as GradioApp
from starlette.routing import Mount

from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import Nothing

Build = Callable[[FastAPI], tuple[FastAPI, gr.Blocks]]


def page_app(app: FastAPI) -> GradioApp:
    """The page that is mounted on an app."""
    return next(route.app for route in app.routes if isinstance(route, Mount) and isinstance(route.app, GradioApp))


def _is_page(route: object) -> bool:
    return isinstance(route, Mount) and isinstance(route.app, GradioApp)


def reload_routes(app: FastAPI, build: Build) -> APIRouter:
    """The route that replaces the page of `app` by one that `build` mounts on an app of its own, and the licences."""
    routes = APIRouter(prefix="/internal", tags=["page"])
    alive = AsyncExitStack()  # what the pages started; it ends with the process
    one_at_a_time = asyncio.Lock()

    @routes.post("/reload-page", **documented({}))
    async def reload_page() -> Nothing:
        """Build the page again; open pages keep working with the old one until they are loaded again."""

        async def built() -> tuple[FastAPI, gr.Blocks]:
            return build(FastAPI())

        async with one_at_a_time:
            # In a thread with a loop of its own: Gradio wants one, and the server goes on answering meanwhile.
            fresh, _ = await asyncio.to_thread(lambda: asyncio.run(built()))
            await alive.enter_async_context(fresh.router.lifespan_context(fresh))
            page = next(route for route in fresh.routes if _is_page(route))
            app.router.routes[:] = [page if _is_page(route) else route for route in app.router.routes]
        return Nothing()

    @routes.get("/licences", **documented([["torch", "2.7.1", "BSD-3-Clause"]]))
    def licences() -> list[list[str]]:
        """Name, version and licence of each installed package."""
        found = {item.name: [item.name, item.version, _licence(item)] for item in distributions()}
        return sorted(found.values(), key=lambda row: row[0].lower())

    return routes


def _licence(item: Distribution) -> str:
    fields = [name for name in ("License-Expression", "License") if name in item.metadata]
    said = item.metadata[fields[0]] if fields else ""
    if said and len(said) <= 80:
        return str(said)
    classes = item.metadata.get_all("Classifier") or []
    names = [text.rpartition("::")[2].strip() for text in classes if text.startswith("License ::")]
    return ", ".join(names) or "see the package"
