"""View of a training in the Train tab: the curves for the page's script, the images, the words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from modules.jobs.job import JobStatus
from modules.jobs.tasks import TaskState
from modules.plots.drawing import plot_place
from modules.system.texts import page_text
from modules.ui.common.messages import note_box
from modules.ui.tabs.task_view import failure_box, task_bar

LABELS = {"loss": "loss (smoothed)", "validation": "held-out images"}


def training_view(state: TaskState) -> str:
    """The whole panel."""
    outcome = state.outcome or {}
    parts = []
    if not state.status.is_final:
        parts.append(task_bar(state))
    elif state.status is JobStatus.INTERRUPTED:
        parts.append(note_box(f"Paused at step {outcome.get('step', 0)}. Resume goes on from there."))
    elif state.status is not JobStatus.DONE:
        parts.append(failure_box(state))
    else:
        file = next(iter(outcome.get("files", ())), "")
        parts.append(note_box(f"{file} is ready, after {outcome.get('seconds', 0):.0f} s. It is among the cards."))
    parts.extend(note_box(text) for text in outcome.get("notices", ()))
    parts.append(curves({name: outcome.get(name, ()) for name in LABELS}, outcome.get("best_step") or 0))
    parts.extend(_sample(sample) for sample in reversed(outcome.get("samples", ())))
    return f'<div class="fw-training">{"".join(parts)}</div>'


def curves(named: Mapping[str, Sequence[Sequence[float]]], best_step: int = 0) -> str:
    """Lines over the steps, as the page's script draws them (plot.js), with their last values; nothing without
    points."""
    if sum(map(len, named.values())) < 2:
        return ""
    drawn = {f"{LABELS[name]}: {line[-1][1]:.4f}": line for name, line in named.items() if line}
    spec = {
        "label": f"Loss over the steps: {', '.join(drawn)}",
        "lines": [{"name": name, "points": [list(point) for point in line]} for name, line in drawn.items()],
        "marks": [{"name": f"best: step {best_step}", "x": best_step}] if best_step else [],
        "x": "step",
        "y": "loss",
    }
    return f'<div class="fw-training-curves">{plot_place(spec)}</div>'


def _sample(sample: Mapping[str, Any]) -> str:
    step = int(sample["step"])
    return page_text(
        f'<figure class="fw-training-sample"><img alt="Images of step {step}, without and with the adapter" '
        f'src="{escape(str(sample["image"]))}"><figcaption>step {step}: without, with</figcaption></figure>'
    )
