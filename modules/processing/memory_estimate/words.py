"""A memory plan in words and as JSON, for page, API and command line alike."""

from typing import Any

from modules.processing.memory_estimate.estimate import MemoryEstimate
from modules.processing.memory_estimate.proposals import Proposal

GB = 1_000_000_000
WHOLE_FROM = 10
"""From how many free gigabytes on their tenths, which change by themselves, are not said."""


def plan_reply(plan: MemoryEstimate, proposals: tuple[Proposal, ...]) -> dict[str, Any]:
    """A plan as JSON."""
    return {
        "device": plan.device,
        "line": plan_line(plan),
        "needs": plan.needs_bytes,
        "available": plan.available_bytes,
        "fits": plan.fits,
        "worst": plan.worst,
        "weights": plan.weights_bytes,
        "learnt_from": plan.learnt_from,
        "main_needs": plan.main_bytes,
        "main_available": plan.main_available_bytes,
        "stages": [
            {"stage": stage.stage, "needs": stage.needs_bytes, "main": stage.main_bytes} for stage in plan.stages
        ],
        "proposals": [
            {
                "title": item.change.title,
                "line": plan_line(item.plan),
                "needs": item.plan.needs_bytes,
                "fits": item.plan.fits,
                "settings": dict(item.change.settings),
                "fields": dict(item.change.fields),
            }
            for item in proposals
        ],
        "nothing_fits": "" if plan.fits or proposals else why_nothing_fits(plan),
    }


def why_nothing_fits(plan: MemoryEstimate) -> str:
    """A sentence for a job for which there is no proposal."""
    worst = max(plan.stages, key=lambda stage: stage.needs_bytes)
    needs, weights = worst.needs_bytes / GB, worst.held_bytes / GB
    missing = f"{needs:.1f} GB at the stage '{worst.stage}', {weights:.1f} GB of it weights"
    if plan.available_bytes is None or plan.needs_bytes <= plan.available_bytes:
        missing = f"{_of(plan.main_bytes, plan.main_available_bytes)} of main memory, where weights wait for the GPU"
    return (
        "It does not fit, and no smaller size or saving setting was found with which it would: it needs "
        f"{missing}. Free memory, make a smaller image, or choose a smaller model."
    )


def plan_line(plan: MemoryEstimate) -> str:
    """For people: "needs 3.2 of 4.0 GB"; with a GPU ", main memory 2.1 of 16.0 GB" too."""
    line = f"needs {_of(plan.needs_bytes, plan.available_bytes)}"
    if plan.main_available_bytes is None:
        return line
    return f"{line}, main memory {_of(plan.main_bytes, plan.main_available_bytes)}"


def _of(needs_bytes: int, available_bytes: int | None) -> str:
    digits = 0 if (available_bytes or 0) >= WHOLE_FROM * GB else 1
    there = "" if available_bytes is None else f" of {available_bytes / GB:.{digits}f}"
    return f"{needs_bytes / GB:.1f}{there} GB"
