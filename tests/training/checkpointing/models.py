"""Models with blocks: equal ones, unequal ones, with dropout, keyword arguments and branches."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 32


class Layer(nn.Module):
    """A block with a wide middle and dropout, and a context that comes as a keyword."""

    def __init__(self, hidden: int, dropout: float = 0.2) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, hidden)
        self.drop = nn.Dropout(dropout)
        self.narrow = nn.Linear(hidden, WIDTH)
        self.runs = 0

    def forward(self, x: Tensor, scale: float, context: Tensor | None = None) -> Tensor:
        self.runs += 1
        middle = self.drop(torch.nn.functional.gelu(self.wide(self.norm(x))))
        extra = 0.0 if context is None else context.mean()
        return torch.as_tensor(x + scale * self.narrow(middle) + extra)


class Stack(nn.Module):
    """Blocks of unequal cost."""

    def __init__(self, hidden: tuple[int, ...] = (64, 64, 256, 64, 128, 64), dropout: float = 0.2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Layer(each, dropout) for each in hidden])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, 0.5, context=context)
        return torch.as_tensor(self.head(x))

    @property
    def runs(self) -> list[int]:
        """How often each block has run."""
        layers: Any = self.layers
        return [layer.runs for layer in layers]


def inputs(tokens: int = 10) -> Tensor:
    return torch.randn(2, tokens, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()


def gradients(model: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, list[Tensor | None]]:
    """Output, and the gradients of x and all parameters that are trained; the random state begins anew."""
    torch.manual_seed(7)
    wanted = [x, *(parameter for parameter in model.parameters() if parameter.requires_grad)]
    output = model(x, *args, **kwargs)
    return output, list(torch.autograd.grad(output.square().sum(), wanted, allow_unused=True))


def same(first: tuple[Tensor, Sequence[Tensor | None]], second: tuple[Tensor, Sequence[Tensor | None]]) -> None:
    """Equal outputs and gradients, or an error that says where."""
    torch.testing.assert_close(first[0], second[0])
    for mine, theirs in zip(first[1], second[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-4)
