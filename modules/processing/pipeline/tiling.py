"""Images that tile: every convolution wraps around the edges while one of them is made."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def circular_padding(modules: Iterable[nn.Module], enabled: bool) -> Iterator[None]:
    """While open, all Conv2d in `modules` pad with what lies at the opposite edge; afterwards they are as before."""
    convolutions = [m for module in modules for m in module.modules() if isinstance(m, nn.Conv2d)] if enabled else []
    before = [convolution.padding_mode for convolution in convolutions]
    try:
        for convolution in convolutions:
            convolution.padding_mode = "circular"
        yield
    finally:
        for convolution, mode in zip(convolutions, before, strict=True):
            convolution.padding_mode = mode
