"""A batch in parts: the gradients of the whole, and attention as diffusers computes it."""

import pytest
import torch
from diffusers.models.attention_processor import Attention, AttnProcessor
from torch import Tensor, nn

from recipes.scenes.parallel import BmmAttention, Workers


@pytest.mark.parametrize("context_width", [None, 24])
def test_attention_is_that_of_diffusers(context_width: int | None) -> None:
    torch.manual_seed(0)
    attention = Attention(32, context_width, heads=4, dim_head=8, processor=AttnProcessor())
    states = torch.randn(2, 9, 32)
    context = None if context_width is None else torch.randn(2, 5, context_width)
    wanted = attention(states, encoder_hidden_states=context)
    attention.set_processor(BmmAttention())
    assert torch.allclose(attention(states, encoder_hidden_states=context), wanted, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_give_the_gradients_of_the_whole(threads: int) -> None:
    torch.manual_seed(0)
    layer, inputs, wanted = nn.Linear(6, 3), torch.randn(10, 6), torch.randn(10, 3)

    def loss_of(part: slice) -> Tensor:
        error: Tensor = layer(inputs[part]) - wanted[part]
        return error.square().mean()

    whole = loss_of(slice(0, 10))
    gradients = torch.autograd.grad(whole, list(layer.parameters()))
    found = Workers(threads).gradients(loss_of, list(layer.parameters()), 10, 4)
    assert found == pytest.approx(float(whole.detach()), rel=1e-5)
    for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
        assert parameter.grad is not None and torch.allclose(parameter.grad, gradient, atol=1e-6)
