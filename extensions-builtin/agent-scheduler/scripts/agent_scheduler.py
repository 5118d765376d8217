"""The routes of the Agent Scheduler extension of the reference UI, as its clients know them, over our own line."""

import sys
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from modules.scripts import program_now, script_callbacks  # noqa: E402

PROGRAM = program_now()


def add_routes(app: Any, services: Any) -> None:
    """Add the routes to the API; only in a server, which has FastAPI."""
    from lib_agent_scheduler.line_access import LineAccess
    from lib_agent_scheduler.routes import agent_scheduler_routes

    app.include_router(agent_scheduler_routes(LineAccess(services), PROGRAM))


script_callbacks.on_api(add_routes)
