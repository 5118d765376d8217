"""A task on the page: its progress as a bar, and how it ended when that was no success."""

from html import escape

from modules.jobs.job import JobStatus
from modules.jobs.tasks import TaskState
from modules.ui.common.messages import error_box, note_box


def task_bar(state: TaskState) -> str:
    """A bar with title, percentage, phase and time left."""
    left = f" · {state.eta_s:.0f} s left" if state.eta_s is not None else ""
    return (
        f'<div class="fw-bar" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{state.fraction * 100:.0f}"><span style="width: {state.fraction:.1%}"></span></div>'
        f'<p class="fw-progress-text">{escape(state.title)}: {state.fraction:.0%} · {escape(state.phase)}{left}</p>'
    )


def failure_box(state: TaskState) -> str:
    """Show what a task says that failed or was cancelled."""
    text = state.error or ""
    return note_box(f"{state.title}: {text}") if state.status is JobStatus.INTERRUPTED else error_box(text)
