"""Proposals: the cheapest change that makes a job fit comes first."""

from typing import Any

import pytest

from modules.processing.planning import MemoryPlan, StageNeed
from modules.processing.proposals import propose
from modules.processing.requests import HiresRequest, Txt2ImgRequest
from modules.settings.values import Settings

MB = 1_000_000


def job(settings: dict[str, Any] | None = None, **values: Any) -> Txt2ImgRequest:
    wanted: dict[str, Any] = {"width": 1024, "height": 768, "batch_size": 1, **values}
    return Txt2ImgRequest(**wanted, settings=Settings().with_changes(settings or {}))


def plan_of(available_mb: int, request: Txt2ImgRequest) -> MemoryPlan:
    """A device on which everything is simple: 1000 MB of weights, and a little a pixel."""
    pixels = request.width * request.height / 1000
    settings = request.settings
    weights = 1000 * MB // (2 if settings.text("fp8_storage") == "Enable" else 1)
    rows = request.batch_size * (2 if settings.flag("batch_cond_uncond") else 1)
    denoise = weights + round(rows * pixels / 10) * MB
    decode = weights + round(pixels / (10 if settings.whole("vae_tile_size") else 1)) * MB
    stages = (StageNeed("denoise", denoise), StageNeed("decode", decode))
    return MemoryPlan("toy", stages, weights, available_mb * MB, 0)


def titles(available_mb: int, request: Txt2ImgRequest) -> list[str]:
    plan = plan_of(available_mb, request)
    found = propose(request, plan, lambda changed: plan_of(available_mb, changed))
    return [item.change.title for item in found]


def test_nothing_for_a_job_that_fits() -> None:
    assert titles(2000, job()) == []


def test_the_same_picture_slower_before_another_picture() -> None:
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
    assert "VAE in tiles" in found[0] and "FP8 weight" in found[0]


def test_the_best_sum_where_nothing_is_enough() -> None:
    request = job()
    plan = plan_of(100, request)
    (only,) = propose(request, plan, lambda changed: plan_of(100, changed))
    assert not only.plan.fits and only.plan.needs_bytes < plan.needs_bytes


@pytest.mark.parametrize("settings", [{"vae_tile_size": 512}, {"fp8_storage": "Enable"}])
def test_what_is_on_already_is_not_proposed(settings: dict[str, Any]) -> None:
    assert not {"VAE in tiles", "FP8 weight"} <= set(titles(800, job(settings)))


def test_sizes_keep_about_the_shape_and_hires_keeps_its_size() -> None:
    assert any("pixels" in title for title in titles(1300, job()))
    assert not any("pixels" in title for title in titles(1300, job(hires=HiresRequest())))
