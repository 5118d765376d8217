"""Modules as shapes only, to be filled from a file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

INITIALISERS = frozenset({nn.init.constant_, nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_})
"""Those of PyTorch's initialisers that can be told apart from what they call; the others end in one of these, or in a
method of a tensor without numbers."""


class _WithoutValues(TorchFunctionMode):
    """Initialisers return at once."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in INITIALISERS:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def on_meta() -> Iterator[None]:
    """Tensors made in here are on the meta device, and no time is spent on how their numbers would be drawn."""
    with torch.device("meta"), _WithoutValues():
        yield
