"""What would make a job fit: changes from the cheapest to the dearest, each tried out by planning the changed job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from modules.processing.planning import MemoryPlan
from modules.processing.requests import Txt2ImgRequest
from modules.settings.definitions import SETTINGS

MOST_PROPOSALS = 3
SMALLEST_SIDE_PX = 256
SIDE_STEP_PX = 64

Plan = Callable[[Txt2ImgRequest], MemoryPlan]


@dataclass(frozen=True)
class Change:
    """`settings` and `fields` (of a txt2img body) that differ; `title` says it to a user."""

    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)

    def applied_to(self, request: Txt2ImgRequest) -> Txt2ImgRequest:
        """The request with the change."""
        names = {"n_iter": "batch_count"}
        values = {names.get(name, name): value for name, value in self.fields.items()}
        return replace(request, settings=request.settings.with_changes(dict(self.settings)), **values)

    def joined(self, other: Change) -> Change:
        """Both."""
        return Change(
            f"{self.title}; {other.title}", {**self.settings, **other.settings}, {**self.fields, **other.fields}
        )


@dataclass(frozen=True)
class Proposal:
    """A change, and what the job would need with it."""

    change: Change
    plan: MemoryPlan


def propose(request: Txt2ImgRequest, plan: MemoryPlan, plan_again: Plan) -> tuple[Proposal, ...]:
    """Changes with which a job that does not fit would, the cheapest first; nothing for one that fits.

    Single changes first. Where none is enough, they are added up in their order until the job fits, or the last sum
    is given with what it would still need.
    """
    if plan.fits:
        return ()
    found: list[Proposal] = []
    sums: Change | None = None
    summed: Proposal | None = None
    for change in changes(request, plan):
        alone = Proposal(change, plan_again(change.applied_to(request)))
        if alone.plan.fits:
            found.append(alone)
            if len(found) == MOST_PROPOSALS:
                break
        if alone.plan.needs_bytes < plan.needs_bytes and not found:
            sums = change if sums is None else sums.joined(change)
            summed = Proposal(sums, plan_again(sums.applied_to(request)))
            if summed.plan.fits and summed.change is not change:
                found.append(summed)
    return tuple(found) or ((summed,) if summed is not None else ())


def changes(request: Txt2ImgRequest, plan: MemoryPlan) -> Iterator[Change]:
    """What can be changed about this request, the cheapest first: the same picture slower, then fewer bits for the
    weights, then another picture."""
    settings = request.settings
    if plan.worst in ("decode", "denoise larger") and not settings.whole("vae_tile_size"):
        yield Change("VAE in tiles", {"vae_tile_size": 512})
    if plan.worst.startswith("denoise"):
        if settings.text("cross_attention_optimization") in ("None", "V1"):
            yield Change("attention in slices", {"cross_attention_optimization": "Doggettx"})
        if settings.flag("batch_cond_uncond"):
            yield Change("prompt and negative prompt one after the other", {"batch_cond_uncond": False})
    if request.batch_size > 1:
        count = request.batch_count * request.batch_size
        yield Change("batch size 1, more batches", fields={"batch_size": 1, "n_iter": count})
    if settings.text("fp8_storage") != "Enable":
        yield Change("FP8 weight", {"fp8_storage": "Enable"})
    if "stream_weights" in SETTINGS and settings.text("stream_weights") in ("Automatic", "Off", "Parts"):
        for word in ("Parts", "Blocks"):
            if settings.text("stream_weights") != word:
                yield Change(f"stream weights: {word.lower()}", {"stream_weights": word})
    if request.hires is None:
        yield from _sizes(request, plan)


def _sizes(request: Txt2ImgRequest, plan: MemoryPlan) -> Iterator[Change]:
    """Smaller pictures of about the same shape."""
    width, height = request.size_px
    for percent in (84, 71, 59, 50):
        sides = [
            max(SMALLEST_SIDE_PX, side * percent // 100 // SIDE_STEP_PX * SIDE_STEP_PX) for side in (width, height)
        ]
        if sides[0] < width or sides[1] < height:
            smaller = {"width": min(sides[0], width), "height": min(sides[1], height)}
            yield Change(f"{smaller['width']}x{smaller['height']} pixels", fields=smaller)
