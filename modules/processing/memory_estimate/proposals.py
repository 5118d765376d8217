"""What would make a job fit: changes from the cheapest to the dearest, each tried out by planning the changed job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modules.processing.engine.streaming_options import AUTOMATIC, LEVELS, OFF
from modules.processing.memory_estimate.estimate import MemoryEstimate
from modules.processing.pipeline.stages import Stage
from modules.processing.request import REQUEST_ROWS, GenerationRequest

MAX_PROPOSALS = 3
SMALLEST_SIDE_PX = 256
SIDE_STEP_PX = 64
DENOISING, PIXELS = "denoise", "pixels"
"""Where a change helps: while denoising, or where the VAE runs."""

Plan = Callable[[GenerationRequest], MemoryEstimate]


@dataclass(frozen=True)
class Change:
    """`settings` and `fields` (of a txt2img body) that differ; `title` says it to a user. `helps`: where; "" is
    everywhere."""

    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    helps: str = ""

    @property
    def is_smaller(self) -> bool:
        """Whether it makes an image of another size."""
        return "width" in self.fields

    @property
    def keys(self) -> frozenset[str]:
        """What it sets. Of two changes that set the same, one takes the place of the other."""
        return frozenset((*self.settings, *self.fields))

    def may_help(self, plan: MemoryEstimate) -> bool:
        """Whether the stage that needs the most could need less with it."""
        if self.helps == DENOISING:
            return plan.worst.samples
        return self.helps != PIXELS or plan.worst.samples or plan.worst in (Stage.DECODE, Stage.ENCODE_IMAGE)

    def applied_to(self, request: GenerationRequest) -> GenerationRequest:
        """The request with the change."""
        values = {row.name: self.fields[row.api] for row in REQUEST_ROWS if row.api in self.fields}
        return replace(request, settings=request.settings.with_changes(dict(self.settings)), **values)


def joined(parts: Sequence[Change]) -> Change:
    """All of them as one; of those that set the same things the last, in the place of the first."""
    by_keys = {part.keys: part for part in parts}
    settings: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for part in by_keys.values():
        settings |= part.settings
        fields |= part.fields
    return Change("; ".join(part.title for part in by_keys.values()), settings, fields)


@dataclass(frozen=True)
class Proposal:
    """A change, and what the job would need with it."""

    change: Change
    plan: MemoryEstimate


def propose(request: GenerationRequest, plan: MemoryEstimate, plan_again: Plan) -> tuple[Proposal, ...]:
    """Changes with which a job that does not fit would, the cheapest first; nothing for one that fits.

    Single changes first. Where none that keeps the image's size is enough, they are added up in their order until the
    job fits, and what the sum can do without is left out again; smaller sizes come after that. Where nothing is
    enough, the sum of all is given with what it would still need.
    """
    if plan.fits:
        return ()
    same_size = [change for change in changes(request) if not change.is_smaller]
    found = _alone(request, same_size, plan, plan_again, MAX_PROPOSALS)
    if not found:
        summed = _summed(request, same_size, plan, plan_again)
        found = [proposal for proposal in summed if proposal.plan.fits]
    smaller = [change for change in changes(request) if change.is_smaller]
    found += _alone(request, smaller, plan, plan_again, MAX_PROPOSALS - len(found))
    return tuple(found) or _summed(request, [*same_size, *smaller], plan, plan_again)


def _alone(
    request: GenerationRequest, choices: Sequence[Change], plan: MemoryEstimate, plan_again: Plan, most: int
) -> list[Proposal]:
    """Of these changes the first ones, at most so many, with one of which the job fits."""
    found: list[Proposal] = []
    for change in choices:
        if len(found) == most:
            break
        if change.may_help(plan):
            alone = Proposal(change, plan_again(change.applied_to(request)))
            found += [alone] * alone.plan.fits
    return found


def _summed(
    request: GenerationRequest, choices: Sequence[Change], plan: MemoryEstimate, plan_again: Plan
) -> tuple[Proposal, ...]:
    parts: list[Change] = []
    now = plan
    is_better = True
    while is_better and not now.fits:  # what did not help may do so when another stage needs the most
        is_better = False
        for change in choices:
            if change in parts or not change.may_help(now):
                continue
            tried = [part for part in parts if part.keys != change.keys] + [change]
            then = plan_again(joined(tried).applied_to(request))
            if then.missing_bytes < now.missing_bytes:
                parts, now, is_better = tried, then, True
            if now.fits:
                break
    if now.fits:
        parts, now = _without_idle(request, parts, now, plan_again)
    order = [change.title for change in choices]
    parts.sort(key=lambda part: order.index(part.title))
    return (Proposal(joined(parts), now),) if parts else ()


def _without_idle(
    request: GenerationRequest, parts: list[Change], plan: MemoryEstimate, plan_again: Plan
) -> tuple[list[Change], MemoryEstimate]:
    """Without the changes that are not needed beside the others, the last first, and the plan then."""
    for part in reversed(list(parts)):
        others = [other for other in parts if other is not part]
        if not others:
            break
        then = plan_again(joined(others).applied_to(request))
        if then.fits:
            parts, plan = others, then
    return parts, plan


def changes(request: GenerationRequest) -> Iterator[Change]:
    """What can be changed about this request, the cheapest first: the same image slower, then fewer bits for the
    weights, then weights that come from elsewhere, then another image."""
    settings = request.settings
    if not settings.whole("vae_tile_size"):
        yield Change("VAE in tiles", {"vae_tile_size": 512}, helps=PIXELS)
    if settings.text("cross_attention_optimization") in ("None", "V1"):
        yield Change("attention in slices", {"cross_attention_optimization": "Doggettx"}, helps=DENOISING)
    if settings.text("split_feed_forward") == "Off":
        yield Change("feed-forwards in slices", {"split_feed_forward": "8"}, helps=DENOISING)
    if settings.flag("batch_cond_uncond"):
        title = "prompt and negative prompt one after the other"
        yield Change(title, {"batch_cond_uncond": False}, helps=DENOISING)
    if request.batch_size > 1:
        count = request.batch_count * request.batch_size
        yield Change("batch size 1, more batches", fields={"batch_size": 1, "n_iter": count})
    if settings.text("fp8_storage") != "Enable":
        yield Change("FP8 weight", {"fp8_storage": "Enable"})
    now = settings.text("stream_weights")
    words = tuple(LEVELS)
    for word in words if now in (AUTOMATIC, OFF) else words[words.index(now) + 1 :]:
        yield Change(f"stream weights: {word.lower()}", {"stream_weights": word})
    if request.hires is None:
        yield from _sizes(request)


def _sizes(request: GenerationRequest) -> Iterator[Change]:
    """Smaller images of about the same shape."""
    width, height = request.size_px
    for percent in (84, 71, 59, 50):
        sides = [
            max(SMALLEST_SIDE_PX, side * percent // 100 // SIDE_STEP_PX * SIDE_STEP_PX) for side in (width, height)
        ]
        if sides[0] < width or sides[1] < height:
            smaller = {"width": min(sides[0], width), "height": min(sides[1], height)}
            yield Change(f"{smaller['width']}x{smaller['height']} pixels", fields=smaller)
