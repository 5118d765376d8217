"""Proposals: the cheapest change that makes a job fit comes first."""

from dataclasses import replace
from typing import Any

import pytest

from modules.processing.memory_estimate.estimate import MemoryEstimate, StageNeed
from modules.processing.memory_estimate.proposals import changes, propose
from modules.processing.memory_estimate.words import plan_line, plan_reply
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.stages import Stage
from modules.settings.values import Settings
from tests.cases import for_each

MB = 1_000_000


def job(settings: dict[str, Any] | None = None, **values: Any) -> GenerationRequest:
    wanted: dict[str, Any] = {"width": 1024, "height": 768, "batch_size": 1, **values}
    return GenerationRequest(**wanted, settings=Settings().with_changes(settings or {}))


def plan_of(available_mb: int, request: GenerationRequest) -> MemoryEstimate:
    """A device on which everything is simple: 1000 MB of weights, and a little a pixel."""
    pixels = request.width * request.height / 1000
    settings = request.settings
    weights = 1000 * MB // (2 if settings.optimizations.fp8_storage == "Enable" else 1)
    rows = request.batch_size * (2 if settings.optimizations.batch_cond_uncond else 1)
    denoise = weights + round(rows * pixels / 10) * MB
    decode = weights + round(pixels / (10 if settings.vae.vae_tile_size else 1)) * MB
    stages = (StageNeed(Stage.SAMPLE, denoise, 0, weights), StageNeed(Stage.DECODE, decode, 0, weights))
    return MemoryEstimate("toy", stages, weights, available_mb * MB, 0)


def titles(available_mb: int, request: GenerationRequest) -> list[str]:
    plan = plan_of(available_mb, request)
    found = propose(request, plan, lambda changed: plan_of(available_mb, changed))
    return [item.change.title for item in found]


def test_nothing_for_a_job_that_fits() -> None:
    assert titles(2000, job()) == []


def test_the_same_image_slower_before_another_image() -> None:
    assert titles(1400, job()) == ["VAE in tiles", "FP8 weight", "704x512 pixels"]


def test_a_large_batch_becomes_several() -> None:
    request = job({"vae_tile_size": 512}, batch_size=8, batch_count=2)
    plan = plan_of(1400, request)
    first = propose(request, plan, lambda changed: plan_of(1400, changed))[0]
    assert first.change.title == "batch size 1, more batches"
    assert first.change.fields == {"batch_size": 1, "n_iter": 16}
    changed = first.change.applied_to(request)
    assert (changed.batch_size, changed.batch_count) == (1, 16) and first.plan.fits


def test_changes_are_added_up_where_none_is_enough() -> None:
    found = titles(700, job())
    assert found == ["VAE in tiles; FP8 weight"]  # and nothing that is not needed beside these


def test_where_nothing_is_enough_there_is_no_proposal_but_a_reason() -> None:
    request = job()
    plan = plan_of(100, request)
    found = propose(request, plan, lambda changed: plan_of(100, changed))
    assert found == ()
    assert "1.8 GB at the stage 'decode', 1.0 GB of it weights" in str(plan_reply(plan, found)["nothing_fits"])


@for_each("available_mb", range(10, 1800, 35))
@for_each("side", [512, 8192])
def test_every_proposal_fits(available_mb: int, side: int) -> None:
    request = job(width=side, height=side, batch_size=4)
    plan = streamed(available_mb, request)
    for item in propose(request, plan, lambda changed: streamed(available_mb, changed)):
        assert item.plan.fits and streamed(available_mb, item.change.applied_to(request)).fits


@pytest.mark.parametrize("seconds_a_plan", [0.05, 0.3, 2.0])
def test_it_ends_in_time_with_something_that_fits(seconds_a_plan: float) -> None:
    request = job(width=8192, height=8192)
    now = [0.0]

    def slow(changed: GenerationRequest) -> MemoryEstimate:
        now[0] += seconds_a_plan
        return streamed(600, changed)

    found = propose(request, streamed(600, request), slow, clock=lambda: now[0])
    assert now[0] <= max(1.0, 2 * seconds_a_plan)
    assert found and all(item.plan.fits for item in found)
    assert found[0].change.fields["width"] >= 1472  # 2048 fits, and is found with more time


def test_where_time_is_over_the_size_stays_if_it_can() -> None:
    request = job(width=1024, height=1024)
    now = [0.0]

    def slow(changed: GenerationRequest) -> MemoryEstimate:
        now[0] += 2.0
        return streamed(200, changed)

    (found,) = propose(request, streamed(200, request), slow, clock=lambda: now[0])
    assert now[0] == 2.0 and found.plan.fits
    assert not found.change.fields and "stream weights: layers" in found.change.title


def test_the_share_of_pixels_that_fits_leaves_out_what_no_smaller_image_saves() -> None:
    stages = (StageNeed(Stage.SAMPLE, 500 * MB, 0, 100 * MB), StageNeed(Stage.DECODE, 900 * MB, 0, 100 * MB))
    plan = MemoryEstimate("toy", stages, 100 * MB, 300 * MB, 0)
    assert plan.share_of_pixels == 0.25
    assert replace(plan, available_bytes=50 * MB).share_of_pixels == 0
    assert [replace(plan, available_bytes=there).share_of_pixels for there in (900 * MB, None)] == [1, 1]


def streamed(available_mb: int, request: GenerationRequest) -> MemoryEstimate:
    """As above, where weights can be streamed: the finer, the less of them is there."""
    plan = plan_of(available_mb, request)
    share = {"Parts": 4, "Blocks": 10, "Layers": 50}.get(request.settings.optimizations.stream_weights, 1)
    slices = 30 * MB if request.settings.optimizations.split_feed_forward == "8" else 0
    gone = plan.weights_bytes - plan.weights_bytes // share
    stages = tuple(
        replace(
            stage,
            needs_bytes=stage.needs_bytes - gone - (slices if stage.stage is Stage.SAMPLE else 0),
            held_bytes=stage.held_bytes - gone,
        )
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


@pytest.mark.parametrize(
    ("available_mb", "rest"),
    [
        (250, "FP8 weight; stream weights: parts"),
        (180, "stream weights: blocks"),  # without fewer bits, where finer streaming does
        (100, "stream weights: layers"),
        (90, "FP8 weight; stream weights: layers"),
        (60, "stream weights: layers; 704x512 pixels"),
    ],
)
def test_in_a_sum_the_later_value_takes_the_place_of_the_earlier(available_mb: int, rest: str) -> None:
    request = job()
    plan = streamed(available_mb, request)
    found = propose(request, plan, lambda changed: streamed(available_mb, changed))
    (text,) = [item.change.title for item in found]
    assert text == f"VAE in tiles; prompt and negative prompt one after the other; {rest}"


def test_main_memory_counts_too() -> None:
    request = job({"stream_weights": "Parts"})
    stages = (StageNeed(Stage.SAMPLE, 3 * MB, 10 * MB),)
    plan = MemoryEstimate("card", stages, MB, 4 * MB, 0, main_available_bytes=8 * MB)
    assert plan.missing_bytes == 2 * MB and not plan.fits
    half = replace(plan, stages=(StageNeed(Stage.SAMPLE, 3 * MB, 5 * MB),))
    found = propose(
        request, plan, lambda changed: half if changed.settings.optimizations.fp8_storage == "Enable" else plan
    )
    assert [item.change.title for item in found] == ["FP8 weight"]
    assert plan_line(plan) == "needs 0.0 of 0.0 GB, main memory 0.0 of 0.0 GB"


@pytest.mark.parametrize(
    ("now", "offered"),
    [
        ("Automatic", ["parts", "blocks", "layers"]),
        ("Off", ["parts", "blocks", "layers"]),
        ("Blocks", ["layers"]),
        ("Layers", []),
    ],
)
def test_finer_streaming_is_offered(now: str, offered: list[str]) -> None:
    names = [change.title for change in changes(job({"stream_weights": now}))]
    assert [name.removeprefix("stream weights: ") for name in names if name.startswith("stream")] == offered
    assert "feed-forwards in slices" in names
    others = [change.title for change in changes(job({"split_feed_forward": "Automatic"}))]
    assert "feed-forwards in slices" not in others


@pytest.mark.parametrize("settings", [{"vae_tile_size": 512}, {"fp8_storage": "Enable"}])
def test_what_is_on_already_is_not_proposed(settings: dict[str, Any]) -> None:
    assert not {"VAE in tiles", "FP8 weight"} <= set(titles(800, job(settings)))


def test_sizes_keep_about_the_shape_and_hires_keeps_its_size() -> None:
    assert any("pixels" in title for title in titles(1300, job()))
    assert not any("pixels" in title for title in titles(1300, job(hires=HiresRequest())))
