"""A memory plan in words and as JSON, for page, API and command line alike."""

from typing import Any

from modules.processing.planning import MemoryPlan
from modules.processing.proposals import Proposal

GB = 1_000_000_000


def plan_reply(plan: MemoryPlan, proposals: tuple[Proposal, ...]) -> dict[str, Any]:
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
        "stages": [{"stage": stage.stage, "needs": stage.needs_bytes} for stage in plan.stages],
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
    }


def plan_line(plan: MemoryPlan) -> str:
    """For people: "needs 3.2 of 4.0 GB"."""
    if plan.available_bytes is None:
        return f"needs {plan.needs_bytes / GB:.1f} GB"
    return f"needs {plan.needs_bytes / GB:.1f} of {plan.available_bytes / GB:.1f} GB"
