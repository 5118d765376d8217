"""Work on checkpoints: merging, comparing and saving in other precisions, as tasks of the queue, two tabs, routes of
the API, and commands of `launch.py`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from modules.jobs.computing import Computing  # noqa: E402
from modules.jobs.tasks import Starter  # noqa: E402
from modules.processing.comparison.series import SeriesReport  # noqa: E402
from modules.scripts import script_callbacks  # noqa: E402
from modules.system.paths import Paths  # noqa: E402

ABOUT = "What 8-bit weights make of a model: report, comparison, conversion."


def starters(computing: Computing) -> Mapping[str, Starter]:
    """Return how merges, reports, comparisons and conversions begin."""
    from lib_workbench.merge_work import merge_starters, merger_of
    from lib_workbench.precision_work import PrecisionWork

    return {**PrecisionWork(computing).starters, **merge_starters(merger_of(computing))}


def add_routes(app: Any, services: Any) -> None:
    """Add the routes to the API; only in a server, which has FastAPI."""
    from lib_workbench.routes import precision_routes

    app.include_router(precision_routes(services))
    app.openapi_tags.append({"name": "precision", "description": ABOUT})


def build_merger(place: Any) -> None:
    """Build the Checkpoint Merger tab; only in a server, which has Gradio."""
    from lib_workbench.merger_tab import build_merger_tab

    build_merger_tab(place)


def build_precision(place: Any) -> None:
    """Build the Precision tab; only in a server, which has Gradio."""
    from lib_workbench.precision_tab import build_precision_tab

    build_precision_tab(place)


def write_comparison(paths: Paths, report: SeriesReport) -> str:
    """Write a comparison of images that a script made, among the reports; returns its page's name."""
    from lib_workbench.precision_work import reports_of, write_series

    return write_series(reports_of(paths), report)


TABS = (
    script_callbacks.PageTab("modelmerger", "Checkpoint Merger", build_merger, after="pnginfo"),
    script_callbacks.PageTab("precision", "Precision", build_precision, after=("train", "modelmerger")),
)

script_callbacks.on_tasks(starters)
script_callbacks.on_api(add_routes)
script_callbacks.on_page_tabs(lambda: TABS)
script_callbacks.on_comparison(write_comparison)
