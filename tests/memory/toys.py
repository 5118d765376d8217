"""Small models that know nothing of images."""

import torch
from torch import Tensor, nn


class Toy(nn.Module):
    """One of everything: embedding, attention that reads its out-projection, convolutions, a tied pair, a parameter
    of its own, norms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 64)
        self.norm = nn.LayerNorm(64)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.first = nn.Linear(64, 128)
        self.tied = nn.Linear(64, 128)
        self.tied.weight = self.first.weight
        self.own = nn.Parameter(torch.randn(64, 64) / 8)
        self.convolution = nn.Conv2d(4, 64, 3, padding=1)
        self.back = nn.ConvTranspose2d(64, 4, 2, stride=2)
        self.line = nn.Conv1d(64, 64, 3)
        self.eval()

    def forward(self, numbers: Tensor, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embedding(numbers)
        x = self.attention(self.norm(x), x, x)[0]
        y = self.first(x) + self.tied(x @ self.own)
        return y, self.back(self.convolution(image)), self.line(x.transpose(1, 2))


CONVOLUTIONS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
}
"""All that are stored."""


def convolution(name: str) -> tuple[nn.Module, Tensor]:
    """One of `CONVOLUTIONS`, with more than 4096 weights, and an input for it."""
    torch.manual_seed(2)
    dimensions = int(name[-2])
    layer = CONVOLUTIONS[name](24, 64, 3, stride=2).eval()
    return layer, torch.randn(2, 24, *(7,) * dimensions)


def toy_inputs() -> tuple[Tensor, Tensor]:
    """For `Toy`."""
    generator = torch.Generator().manual_seed(1)
    return torch.arange(8)[None] % 11, torch.randn(1, 4, 8, 8, generator=generator)
