"""The step cache: what is kept exactly, when the model is called, and that no image of a batch is let down."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from modules.sampling.step_cache import StepCache


def run(cache: StepCache, outputs: "list[Tensor]", x: Tensor) -> "tuple[Tensor, list[bool]]":
    """Euler from sigma 1 to 0 with outputs x + each of `outputs`; whether the model was called, step by step."""
    called = []
    total = len(outputs)
    for step, added in enumerate(outputs):
        sigma = torch.full((len(x),), 1 - step / total)
        scale = sigma.reshape(-1, 1, 1, 1)
        denoised = cache.denoised(step, x, sigma)
        called.append(denoised is None)
        if denoised is None:
            denoised = x - scale * (x + added)
            cache.take(x, sigma, denoised)
        x = x - (x - denoised) / scale / total
    return x, called


def start(images: int = 1) -> Tensor:
    return torch.randn(images, 4, 6, 6, generator=torch.Generator().manual_seed(1))


@given(st.integers(5, 60), st.floats(0.01, 0.3))
def test_what_adds_the_same_at_each_step_is_reproduced(total: int, threshold: float) -> None:
    outputs = [torch.full((1, 4, 6, 6), 0.5)] * total
    whole, _ = run(StepCache(total, 0.0), outputs, start())
    cache = StepCache(total, threshold)
    made, called = run(cache, outputs, start())
    torch.testing.assert_close(made, whole, rtol=1e-4, atol=1e-4)
    assert called.count(False) == cache.reused
    assert all(called[: cache.warm_up]) and called[-1]


@given(st.integers(8, 50), st.integers(0, 2**31), st.floats(0.0, 0.3))
def test_the_first_and_the_last_step_are_calls_whatever_the_model_says(total: int, seed: int, threshold: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs = [torch.randn(1, 4, 6, 6, generator=generator) for _ in range(total)]
    cache = StepCache(total, threshold)
    made, called = run(cache, outputs, start())
    assert made.isfinite().all() and all(called[: cache.warm_up]) and called[-1]


def test_more_threshold_means_fewer_calls_and_none_all() -> None:
    outputs = [torch.full((1, 4, 6, 6), 1 + 0.3 * step / 40) for step in range(40)]
    counts = [sum(run(StepCache(40, threshold), outputs, start())[1]) for threshold in (0.0, 0.03, 0.1, 0.3)]
    assert counts[0] == 40 and counts == sorted(counts, reverse=True) and counts[-1] < 20


def test_the_image_that_changes_most_decides() -> None:
    """Of two images, one goes on as before and one jumps about: the model is called for both."""
    calm, wild = torch.zeros(40, 1, 4, 6, 6), torch.randn(40, 1, 4, 6, 6, generator=torch.Generator().manual_seed(2))
    alone = run(StepCache(40, 0.1), list(calm), start())[1]
    both = run(StepCache(40, 0.1), [torch.cat((a, 9 * b)) for a, b in zip(calm, wild, strict=True)], start(2))[1]
    assert sum(alone) < sum(both)


@pytest.mark.parametrize("forget", ["reset", "shape", "nan"])
def test_what_cannot_be_compared_is_called(forget: str) -> None:
    cache, x, sigma = StepCache(20, 0.3), start(), torch.ones(1)
    for step in range(6):
        cache.take(x + 0.01 * step, sigma, torch.zeros_like(x))
    assert cache.denoised(8, x + 0.07, sigma) is not None
    if forget == "reset":
        cache.reset()
    x = {"reset": x, "shape": start(2), "nan": x * float("nan")}[forget]
    assert cache.denoised(9, x, sigma) is None
