"""All ways of attention give the same numbers; slices and chunks of any size, uneven ones too."""

import importlib.util
from typing import cast

import pytest
import torch
from torch import Tensor

from modules.memory.attention import (
    ATTENTIONS,
    AttentionOptions,
    free_bytes,
    sliced,
    sub_quadratic,
    upcast,
    whole,
    xformers_problem,
)
from modules.system.devices import GPUS, DeviceReading, Gpu

WAYS = [name for name in ATTENTIONS if name != "xformers"]


def inputs(queries: int = 37, keys: int = 23, width: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 3, queries, width, generator=generator)
    key, value = torch.randn(2, 2, 3, keys, width, generator=generator).unbind(0)
    return query, key, value


def exact(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = query.double(), key.double(), value.double()
    weights = torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1)
    return weights @ value


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("sizes", [(37, 23), (1, 1), (64, 77), (5, 1)])
def test_every_way_gives_the_exact_result(name: str, sizes: tuple[int, int]) -> None:
    attend = ATTENTIONS.get(name)(AttentionOptions(query_chunk=10, key_chunk=7, threshold_percent=0, score_bytes=500))
    query, key, value = inputs(*sizes)
    torch.testing.assert_close(attend(query, key, value).double(), exact(query, key, value), rtol=0, atol=2e-6)


@pytest.mark.parametrize("score_bytes", [0, 100, 37 * 23 * 4, 37 * 23 * 4 * 4, 1 << 30])
def test_slices_of_any_size(score_bytes: int) -> None:
    query, key, value = inputs()
    expected = exact(query, key, value).float()
    torch.testing.assert_close(sliced(query, key, value, score_bytes), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("chunks", [(1, 1), (10, 7), (37, 23), (1000, 1000)])
def test_chunks_of_any_size(chunks: tuple[int, int]) -> None:
    query, key, value = inputs()
    expected = exact(query, key, value).float()
    torch.testing.assert_close(sub_quadratic(query, key, value, *chunks), expected, rtol=0, atol=2e-6)


def test_chunks_survive_scores_that_overflow_exp() -> None:
    query, key, value = inputs()
    expected = exact(query * 100, key * 100, value).float()
    torch.testing.assert_close(sub_quadratic(query * 100, key * 100, value, 5, 5), expected, rtol=0, atol=1e-4)


def test_upcast_computes_in_fp32_and_gives_the_dtype_back() -> None:
    seen = []

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen.append(query.dtype)
        return whole(query, key, value)

    query, key, value = (tensor.bfloat16() for tensor in inputs())
    with torch.autocast("cpu", torch.bfloat16):
        result = upcast(attend)(query, key, value)
    assert seen == [torch.float32]
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.double(), exact(query, key, value), rtol=0, atol=1e-2)


@pytest.mark.parametrize("name", WAYS)
def test_low_precision_in_low_precision_out(name: str) -> None:
    attend = ATTENTIONS.get(name)(AttentionOptions(query_chunk=10, key_chunk=7, threshold_percent=0))
    query, key, value = (tensor.bfloat16() for tensor in inputs())
    result = attend(query, key, value)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.double(), exact(query, key, value), rtol=0, atol=3e-2)


@pytest.mark.skipif(importlib.util.find_spec("xformers") is not None, reason="xformers is installed")
def test_absent_xformers_is_a_reason_not_an_error() -> None:
    problem = xformers_problem(torch.device("cpu"), torch.float32)
    assert problem is not None and "not installed" in problem


def test_free_memory_of_a_card_is_what_the_driver_has_and_what_pytorch_holds_unused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Card:
        has_streams = True

        def read(self, device: torch.device) -> DeviceReading:
            return DeviceReading(free=3000, total=8000, reserved=4000, allocated=2500, peak=2500)

        def statistics(self, device: torch.device) -> dict[str, int]:
            return {"reserved_bytes.all.current": 4000, "allocated_bytes.all.current": 2500}

    monkeypatch.setitem(GPUS, "cuda", cast(Gpu, Card()))
    assert free_bytes(torch.device("cuda")) == 4500
    assert free_bytes(torch.device("mps")) is None
