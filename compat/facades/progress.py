"""`modules.progress`: how far jobs are."""

from __future__ import annotations

import secrets

from compat.facades.refusal import refusing

current_task: str | None = None
pending_tasks: dict[str, float] = {}
finished_tasks: list[str] = []
recorded_results: list[object] = []


_ROUTE = "GET /sdapi/v1/progress and POST /internal/progress say how far jobs are."
_NAMES = ("progressapi", "ProgressRequest", "ProgressResponse", "restore_progress", "setup_progress_api")


def create_task_id(task_type: str) -> str:
    """A name for a job."""
    return f"task({task_type}-{secrets.token_hex(8)})"


def add_task_to_queue(id_job: str) -> None:
    """Jobs are put in line by the program: process_images(p) in a function of the page."""


def start_task(id_task: str) -> None:
    """The program knows which job runs."""


def finish_task(id_task: str) -> None:
    """The program knows which job runs."""


def record_results(id_task: str, res: object) -> None:
    """Results are kept by the queue."""


__getattr__ = refusing("progress", dict.fromkeys(_NAMES, _ROUTE))
