"""Kernels that numba compiles: what they compute where they run, and what is computed without them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from modules.memory.attention import ATTENTIONS, Attention, AttentionOptions
from modules.memory.kernels.support import attention_problem

compiled = pytest.mark.skipif(attention_problem() is not None, reason=attention_problem() or "")


def way() -> Attention:
    return ATTENTIONS.get("int8")(AttentionOptions())


def heads(tokens: int, width: int, seed: int, count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, tokens, count, width, generator=generator).transpose(1, 2)


@torch.inference_mode()
def test_without_numba_it_is_the_attention_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.memory.kernels.support.attention_problem", lambda: "numba is not installed")
    query, key, value = (heads(256, 40, seed) for seed in range(3))
    assert torch.equal(way()(query, key, value), F.scaled_dot_product_attention(query, key, value))


@compiled
@torch.inference_mode()
@pytest.mark.parametrize(("queries", "keys", "width"), [(256, 256, 40), (65, 301, 64), (130, 257, 33), (64, 300, 160)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_in_int8_is_that_of_pytorch_up_to_rounding(
    queries: int, keys: int, width: int, dtype: torch.dtype
) -> None:
    query, key, value = heads(queries, width, 0), heads(keys, width, 1) + 3 * heads(1, width, 3), heads(keys, width, 2)
    true = F.scaled_dot_product_attention(query, key, value)
    made = way()(query.to(dtype), key.to(dtype), value.to(dtype))
    assert made.dtype == dtype
    assert (made.float() - true).norm() < 0.03 * true.norm()


@compiled
@torch.inference_mode()
def test_one_key_that_outweighs_all_others_gives_its_value() -> None:
    query, key, value = (heads(256, 64, seed) for seed in range(3))
    key[:, :, 200] = 20 * query[:, :, 7]
    made = way()(query, key, value)
    torch.testing.assert_close(made[:, :, 7], value[:, :, 200], rtol=0.01, atol=0.01)


@compiled
@torch.inference_mode()
def test_threads_change_nothing() -> None:
    query, key, value = (heads(300, 40, seed, count=1) for seed in range(3))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = way()(query, key, value)
        torch.set_num_threads(3)
        assert torch.equal(way()(query, key, value), one)
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def test_nan_stays_nan() -> None:
    query, key, value = (heads(256, 40, seed) for seed in range(3))
    value[0, 0, 3, 4] = torch.nan
    assert way()(query, key, value)[0, 0, :, 4].isnan().all()
