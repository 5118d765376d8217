"""Times that reach a transformer's embedding as they are: diffusers' classes cast them to the compute dtype before they
multiply them by 1000, and in bf16 750 becomes 752."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from modules.memory.hook_chain import HookOrder, register_hook


@contextmanager
def exact_times(embedding: Any, *times: Tensor | None) -> Iterator[None]:
    """While open, `time_proj` of `embedding` computes the sinusoids of `times` [B] in place of the rounded ones that it
    is given: fp32, one for each of its calls in a pass, in their order. None leaves what a call is given."""
    left = iter(times)

    def of_exact(module: nn.Module, inner: Callable[..., Any], /, rounded: Tensor) -> Any:
        exact = next(left, None)
        return inner(rounded if exact is None else exact.to(rounded.device))

    handle = register_hook(embedding.time_proj, of_exact, HookOrder.COMPUTE)
    try:
        yield
    finally:
        handle.remove()
