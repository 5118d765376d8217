"""The image routes of OpenAI's API below `/v1`, as its clients and chat programs know them, over our own queue."""

import sys
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from modules.scripts import script_callbacks  # noqa: E402

ABOUT = "Images and models by the routes of OpenAI's API. Errors come in its shape: error.message, type, param, code."


def add_routes(app: Any, services: Any) -> None:
    """Add the routes to the API; only in a server, which has FastAPI."""
    from lib_openai_images.errors import openai_error
    from lib_openai_images.routes import openai_routes

    app.state.error_shapes = {**getattr(app.state, "error_shapes", {}), "/v1/": openai_error}
    app.include_router(openai_routes(services))
    app.openapi_tags.append({"name": "openai", "description": ABOUT})


script_callbacks.on_api(add_routes)
