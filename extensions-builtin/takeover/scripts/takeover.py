"""Taking over a folder of the reference UI or of Forge: on the page, over HTTP, and by `launch.py import`."""

import sys
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from modules.scripts import script_callbacks  # noqa: E402


def add_routes(app: Any, services: Any) -> None:
    """Add the route to the API; only in a server, which has FastAPI."""
    from lib_takeover.routes import takeover_routes

    app.include_router(takeover_routes(services))


def build(services: Any) -> None:
    """Build the part of the page; only in a server, which has Gradio."""
    from lib_takeover.page import build_takeover

    build_takeover(services)


script_callbacks.on_api(add_routes)
script_callbacks.on_settings_actions(build)
