"""Few tokens by int8 weights: near what decoding gives, streamed or not, and only while the context is open."""

from typing import Any

import pytest
import torch
from torch import nn

from modules.memory import few_tokens as module
from modules.memory.few_tokens import MAX_TOKENS, few_tokens
from modules.memory.layer import stored_state
from modules.memory.streaming.groups import Level
from modules.memory.streaming.streaming import stream
from tests.memory.test_int8_matmul import stored


def layer_of(storage: str = "int8_row") -> Any:
    torch.manual_seed(1)
    return stored(nn.Linear(96, 160).requires_grad_(False), storage)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 96), (1, MAX_TOKENS, 96), (3, 96)])
def test_few_tokens_are_multiplied_nearly_as_by_the_decoded_weight(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], streamed: bool
) -> None:
    monkeypatch.setattr(module, "SLICE_BYTES", 96 * 50)  # a streamed weight comes in slices
    model, x = nn.Sequential(layer_of()), torch.randn(shape)
    state = stored_state(model[0])
    assert state is not None
    with torch.no_grad():
        wanted = model(x)
        handle = stream({"model": model}, torch.device("cpu"), Level.LAYER) if streamed else None
        with few_tokens((model,)):
            found = model(x)
        assert state.product is None and torch.equal(model(x), wanted)
        if handle is not None:
            handle.remove()
    assert found.shape == wanted.shape and not torch.equal(found, wanted)
    assert float((found - wanted).abs().max() / wanted.std()) < 0.02


def test_more_tokens_and_other_formats_decode() -> None:
    model, many = nn.Sequential(layer_of()), torch.randn(1, MAX_TOKENS + 1, 96)
    other, few = nn.Sequential(layer_of("fp8_e4m3fn_row")), torch.randn(1, 1, 96)
    with torch.no_grad():
        wanted = model(many), other(few)
        with few_tokens((model, other)):
            assert torch.equal(model(many), wanted[0]) and torch.equal(other(few), wanted[1])


def test_a_kernel_that_is_missing_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(*_: Any) -> None:
        asked.append(1)
        raise RuntimeError("no kernel for it")

    monkeypatch.setattr(torch, "_weight_int8pack_mm", refuse)
    model, x = nn.Sequential(layer_of()), torch.randn(1, 1, 96)
    with torch.no_grad():
        wanted = model(x)
        with few_tokens((model,)):
            assert torch.equal(model(x), wanted) and torch.equal(model(x), wanted)
    assert asked == [1]
