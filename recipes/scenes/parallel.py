"""One training step's gradients on several cores: each part of the batch on a thread of its own.

A small model's operators are too short to be shared: on two threads they wait for each other more than they compute,
and worse where other programs use the cores too. Parts of a batch need each other only when they are done.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn


class BmmAttention:
    """Attention by two batched matrix products. With heads as narrow as here (8 channels), torch's fused CPU kernel
    takes twice the time, most of it in its backward pass."""

    def __call__(
        self, attention: Any, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None, **_unused: Any
    ) -> Tensor:
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key, value = (
            _split(linear(states), attention.heads)
            for linear, states in (
                (attention.to_q, hidden_states),
                (attention.to_k, context),
                (attention.to_v, context),
            )
        )
        scores = torch.bmm(query * query.shape[-1] ** -0.5, key.transpose(1, 2))
        mixed = torch.bmm(scores.softmax(-1, dtype=scores.dtype), value)
        images, _, width = hidden_states.shape[0], *mixed.shape[1:]
        joined = mixed.view(images, attention.heads, -1, width).transpose(1, 2).flatten(2)
        result: Tensor = attention.to_out[1](attention.to_out[0](joined))
        return result


def _split(states: Tensor, heads: int) -> Tensor:
    """[n, tokens, width] to [n * heads, tokens, width / heads]."""
    return torch.unflatten(states, 2, (heads, -1)).transpose(1, 2).flatten(0, 1)


class Workers:
    """Computes the gradients of a batch's parts, as many at once as torch was given threads."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def gradients(
        self, loss_of: Callable[[slice], Tensor], parameters: Sequence[nn.Parameter], batch: int, part: int
    ) -> float:
        """Set the gradients of the mean loss over a batch, computed by `part` images; returns that loss.

        `loss_of` gives the mean loss over one part. The sum is always taken in the same order.
        """
        slices = [slice(start, min(batch, start + part)) for start in range(0, batch, part)]
        running = [self._pool.submit(_part_gradients, loss_of, parameters, one) for one in slices]
        total, summed = 0.0, [torch.zeros_like(parameter) for parameter in parameters]
        for one, future in zip(slices, running, strict=True):
            share = (one.stop - one.start) / batch
            loss, gradients = future.result()
            total += share * loss
            torch._foreach_add_(summed, gradients, alpha=share)
        for parameter, gradient in zip(parameters, summed, strict=True):
            parameter.grad = gradient
        return total


def _part_gradients(
    loss_of: Callable[[slice], Tensor], parameters: Sequence[nn.Parameter], one: slice
) -> tuple[float, list[Tensor]]:
    loss = loss_of(one)
    return float(loss.detach()), list(torch.autograd.grad(loss, parameters))
