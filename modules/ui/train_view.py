"""What the Train tab shows of a training: the curves as an SVG, the images, the words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from modules.jobs.job import JobStatus
from modules.jobs.tasks import TaskState
from modules.ui.messages import note_box
from modules.ui.task_view import failure_box, task_bar

WIDTH, HEIGHT, MARGIN = 640, 220, 36
COLOURS = {"loss": "var(--fw-train-loss)", "validation": "var(--fw-train-held)"}
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
    parts.append(curves({name: outcome.get(name, ()) for name in COLOURS}, outcome.get("best_step") or 0))
    parts.extend(_sample(sample) for sample in reversed(outcome.get("samples", ())))
    return f'<div class="fw-training">{"".join(parts)}</div>'


def curves(named: Mapping[str, Sequence[Sequence[float]]], best_step: int = 0) -> str:
    """Lines over the steps, with what they are and their last values; nothing without points."""
    points = [point for line in named.values() for point in line]
    if len(points) < 2:
        return ""
    last = max(max(point[0] for point in points), 1)
    values = [point[1] for point in points]
    low, high = min(values), max(values)
    span = high - low or 1.0

    def place(point: Sequence[float]) -> str:
        x = MARGIN + (WIDTH - 2 * MARGIN) * point[0] / last
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (point[1] - low) / span
        return f"{x:.1f},{y:.1f}"

    lines, legend = [], []
    for name, line in named.items():
        if not line:
            continue
        if len(line) == 1:
            x, y = place(line[0]).split(",")
            lines.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{COLOURS[name]}"/>')
        lines.append(
            f'<polyline fill="none" stroke="{COLOURS[name]}" stroke-width="2" points="{" ".join(map(place, line))}"/>'
        )
        legend.append(f'<span><i style="background: {COLOURS[name]}"></i>{LABELS[name]}: {line[-1][1]:.4f}</span>')
    if best_step:
        x = MARGIN + (WIDTH - 2 * MARGIN) * best_step / last
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{MARGIN}" y2="{HEIGHT - MARGIN}" class="fw-training-best"/>')
        legend.append(f"<span>best: step {best_step}</span>")
    axis = (
        f'<text x="{MARGIN}" y="{HEIGHT - 10}">0</text><text x="{WIDTH - MARGIN}" y="{HEIGHT - 10}" text-anchor="end">'
        f'step {last:g}</text><text x="4" y="{MARGIN}">{high:.3g}</text>'
        f'<text x="4" y="{HEIGHT - MARGIN}">{low:.3g}</text>'
    )
    said = "Loss over the steps: " + ", ".join(
        f"{LABELS[name]} {line[-1][1]:.4f}" for name, line in named.items() if line
    )
    return (
        f'<figure class="fw-training-curves"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(said)}">'
        f"{axis}{''.join(lines)}</svg><figcaption>{''.join(legend)}</figcaption></figure>"
    )


def _sample(sample: Mapping[str, Any]) -> str:
    step = int(sample["step"])
    return (
        f'<figure class="fw-training-sample"><img alt="Images of step {step}, without and with the adapter" '
        f'src="{escape(str(sample["image"]))}"><figcaption>step {step}: without, with</figcaption></figure>'
    )
