"""Changes that make a job fit, from the cheapest to the dearest, each tried by estimating the changed job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modules.processing.engine.streaming_options import AUTOMATIC, LEVELS, OFF
from modules.processing.memory_estimate.estimate import MemoryEstimate
from modules.processing.request.request import REQUEST_ROWS, GenerationRequest
from modules.processing.request.stages import Stage

MAX_PROPOSALS = 3
SMALLEST_SIDE_PX = 256
SIDE_STEP_PX = 64
SIZES_PERCENT = (84, 71, 59, 50, 42, 35, 30, 25, 18, 12, 9, 6, 3)
SECONDS = 0.8
"""How long to look for proposals; a plan that was begun is waited for."""
SHARE_TRIED = 0.95
"""Of the pixels that seem to fit, as many are tried first: kernels and maps of features round up."""
DENOISING, PIXELS = "denoise", "pixels"
"""Where a change helps: while denoising, or where the VAE runs."""

Plan = Callable[[GenerationRequest], MemoryEstimate]
Clock = Callable[[], float]


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
    def is_weights_only(self) -> bool:
        """Whether what the stages compute stays the same, so that its plan needs no dry run."""
        return not self.helps and not self.fields

    @property
    def keys(self) -> frozenset[str]:
        """Return what the change sets. Of two changes that set the same, one replaces the other."""
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


class _Tries:
    """Plans of changed requests, for as long as there is time for one more."""

    def __init__(self, request: GenerationRequest, plan_again: Plan, clock: Clock) -> None:
        self._request, self._plan_again, self._clock = request, plan_again, clock
        self._end = clock() + SECONDS
        self._longest = 0.0
        self._known: dict[str, MemoryEstimate] = {}
        self._computed: set[frozenset[str]] = set()

    def plan(self, parts: Sequence[Change], is_needed: bool = False) -> MemoryEstimate | None:
        """The plan with these changes; None where time is over and it is not needed."""
        change = joined(parts)
        if change.title not in self._known:
            computed = frozenset(part.title for part in parts if not part.is_weights_only)
            began = self._clock()
            takes = 0.0 if computed in self._computed else self._longest
            if began + takes > self._end and not is_needed:
                return None
            self._known[change.title] = self._plan_again(change.applied_to(self._request))
            self._longest = max(self._longest, self._clock() - began)
            self._computed.add(computed)
        return self._known[change.title]

    def proposal(self, parts: Sequence[Change], is_needed: bool = False) -> Proposal | None:
        """These changes, if the job fits with them."""
        plan = self.plan(parts, is_needed)
        return Proposal(joined(parts), plan) if plan is not None and plan.fits else None


def propose(
    request: GenerationRequest, plan: MemoryEstimate, plan_again: Plan, clock: Clock = time.monotonic
) -> tuple[Proposal, ...]:
    """Changes with which a job that does not fit would, the cheapest first; nothing for one that fits, and nothing
    where no change is enough (`words.why_nothing_fits` says so).

    Single changes first. Where none that keeps the image's size is enough, they are added up in their order until the
    job fits, and what the sum can do without is left out again; smaller sizes come after that, alone or with the sum.
    It begins with all changes that keep the size, so that there is an answer when `SECONDS` are over: these, or with
    them the largest size that is known to fit.
    """
    if plan.fits:
        return ()
    tries = _Tries(request, plan_again, clock)
    same_size = [change for change in changes(request) if not change.is_smaller]
    smaller = [change for change in changes(request) if change.is_smaller]
    everything = _strongest(same_size)
    whole = (tries.plan(everything, is_needed=True) if everything else None) or plan
    if not whole.fits:
        share = whole.share_of_pixels * SHARE_TRIED
        pixels = share * request.width * request.height
        found = _smaller_with(tries, everything, smaller, pixels)
        return (found,) if found else ()
    fitting = _alone(tries, same_size, plan, MAX_PROPOSALS) or [_summed(tries, same_size, plan, everything)]
    return (*fitting, *_alone(tries, smaller, plan, MAX_PROPOSALS - len(fitting)))


def _strongest(choices: Sequence[Change]) -> list[Change]:
    """Return, of changes that set the same things, the last, which saves the most."""
    return list({change.keys: change for change in choices}.values())


def _alone(tries: _Tries, choices: Sequence[Change], plan: MemoryEstimate, most: int) -> list[Proposal]:
    """Return the first of these changes, at most so many, each of which makes the job fit alone."""
    found: list[Proposal] = []
    for change in choices:
        if len(found) == most:
            break
        alone = tries.proposal([change]) if change.may_help(plan) else None
        found += [alone] if alone else []
    return found


def _summed(tries: _Tries, choices: Sequence[Change], plan: MemoryEstimate, everything: list[Change]) -> Proposal:
    """The sum that fits, of `everything` where there is no time to find a smaller one."""
    parts: list[Change] = []
    now = plan
    is_better = True
    while is_better and not now.fits:  # what did not help may do so when another stage needs the most
        is_better = False
        for change in choices:
            if change in parts or not change.may_help(now):
                continue
            tried = [part for part in parts if part.keys != change.keys] + [change]
            then = tries.plan(tried)
            if then is not None and then.missing_bytes < now.missing_bytes:
                parts, now, is_better = tried, then, True
            if now.fits:
                break
    return _without_idle(tries, parts if now.fits else everything, choices)


def _smaller_with(tries: _Tries, parts: list[Change], sizes: Sequence[Change], likely_pixels: float) -> Proposal | None:
    """The largest of these sizes, given from large to small, that fits together with the other changes: looked for
    upwards or downwards from the first that has no more than `likely_pixels`."""
    if not sizes:
        return None
    pixels = [size.fields["width"] * size.fields["height"] for size in sizes]
    likely = (number for number, count in enumerate(pixels) if count <= likely_pixels)
    low, high = 0, len(sizes)  # the first size that fits is in [low, high]
    middle, is_first = next(likely, high - 1), True
    while low < high:
        plan = tries.plan([*parts, sizes[middle]], is_needed=is_first)
        if plan is None:
            break
        low, high = (low, middle) if plan.fits else (middle + 1, high)
        middle, is_first = high - 1 if plan.fits else low, False
    if high == len(sizes):
        return tries.proposal([*parts, sizes[-1]], is_needed=True)
    return _without_idle(tries, [*parts, sizes[high]], [*parts, *sizes])


def _without_idle(tries: _Tries, parts: list[Change], order: Sequence[Change]) -> Proposal:
    """A sum that fits, without the changes that are not needed next to the others, the last first; in this order."""
    for part in reversed(list(parts)):
        others = [other for other in parts if other is not part]
        if others and not part.is_smaller and tries.proposal(others):
            parts = others
    titles = [change.title for change in order]
    parts = sorted(parts, key=lambda part: titles.index(part.title))
    found = tries.proposal(parts)
    assert found is not None, "a sum that was tried before"
    return found


def changes(request: GenerationRequest) -> Iterator[Change]:
    """Yield what can be changed about this request, the cheapest first: the same image slower, then fewer bits for the
    weights, then weights that come from elsewhere, then another image."""
    settings = request.settings
    if not settings.vae.vae_tile_size:
        yield Change("VAE in tiles", {"vae_tile_size": 512}, helps=PIXELS)
    if settings.optimizations.cross_attention_optimization in ("None", "V1"):
        yield Change("attention in slices", {"cross_attention_optimization": "Doggettx"}, helps=DENOISING)
    if settings.optimizations.split_feed_forward == "Off":
        yield Change("feed-forwards in slices", {"split_feed_forward": "8"}, helps=DENOISING)
    if settings.optimizations.batch_cond_uncond:
        title = "prompt and negative prompt one after the other"
        yield Change(title, {"batch_cond_uncond": False}, helps=DENOISING)
    if request.batch_size > 1:
        count = request.batch_count * request.batch_size
        yield Change("batch size 1, more batches", fields={"batch_size": 1, "n_iter": count})
    if settings.optimizations.fp8_storage != "Enable":
        yield Change("FP8 weight", {"fp8_storage": "Enable"})
    now = settings.optimizations.stream_weights
    words = tuple(LEVELS)
    for word in words if now in (AUTOMATIC, OFF) else words[words.index(now) + 1 :]:
        yield Change(f"stream weights: {word.lower()}", {"stream_weights": word})
    if request.hires is None:
        yield from _sizes(request)


def _sizes(request: GenerationRequest) -> Iterator[Change]:
    """Smaller images of about the same shape."""
    width, height = request.size_px
    seen = {(width, height)}
    for percent in SIZES_PERCENT:
        size = (_smaller_side(width, percent), _smaller_side(height, percent))
        if size not in seen:
            seen.add(size)
            yield Change(f"{size[0]}x{size[1]} pixels", fields={"width": size[0], "height": size[1]})


def _smaller_side(side: int, percent: int) -> int:
    return min(side, max(SMALLEST_SIDE_PX, side * percent // 100 // SIDE_STEP_PX * SIDE_STEP_PX))
