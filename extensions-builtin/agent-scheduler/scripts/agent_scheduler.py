"""The routes of the Agent Scheduler extension of the reference UI, as its clients know them, over our own line."""

import sys
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from modules import script_callbacks  # noqa: E402
from modules.scripts import program_now  # noqa: E402

PROGRAM = program_now()


def add_routes(page: object, app: Any) -> None:
    """Called when page and API are built."""
    from lib_agent_scheduler.routes import agent_scheduler_routes  # only where there is a server

    from modules.api.line_access import line_of

    app.include_router(agent_scheduler_routes(line_of(app), PROGRAM))


script_callbacks.on_app_started(add_routes)
