"""Training of LoRAs and embeddings: tasks of the queue, the Train tab, routes of the API, and `launch.py train`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from modules.jobs.computing import Computing  # noqa: E402
from modules.jobs.tasks import Starter  # noqa: E402
from modules.scripts import script_callbacks  # noqa: E402

ABOUT = "Adapters and embeddings from images: training as a task, a learning rate, new embeddings."


def starters(computing: Computing) -> Mapping[str, Starter]:
    """Return how trainings begin, and go on after a restart."""
    from lib_training.work import TrainingWork

    return TrainingWork(computing).starters


def add_routes(app: Any, services: Any) -> None:
    """Add the routes to the API; only in a server, which has FastAPI."""
    from lib_training.routes import training_routes

    app.include_router(training_routes(services))
    app.openapi_tags.append({"name": "training", "description": ABOUT})


def build(place: Any) -> None:
    """Build the Train tab; only in a server, which has Gradio."""
    from lib_training.tab import build_train_tab

    build_train_tab(place)


TAB = script_callbacks.PageTab("train", "Train", build, after=("modelmerger", "pnginfo"))

script_callbacks.on_tasks(starters)
script_callbacks.on_api(add_routes)
script_callbacks.on_page_tabs(lambda: [TAB])
