"""Token merging (Bolya and Hoffman 2023, arXiv:2303.17604): faster self-attention on fewer tokens, by `tomesd`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from modules.memory.hook_chain import HookOrder, register_hook

STRIDE = 2  # of the grid of tokens into which others are merged


@contextmanager
def merged_tokens(unet: nn.Module, ratio: float, mergeable: str) -> Iterator[bool]:
    """While open, the UNet's self-attention merges `ratio` (0 to 0.9) of its tokens at the finest resolution, in
    the blocks of the class `mergeable`.

    Deterministic: which tokens are merged is not drawn at random. With 0, and for a model without such blocks,
    nothing changes; gives whether something does.
    """
    blocks = [block for block in unet.modules() if any(each.__name__ == mergeable for each in type(block).__mro__)]
    if ratio <= 0 or not blocks:
        yield False
        return
    size = _LatentSize()
    with ExitStack() as undo:
        undo.callback(register_hook(unet, size, HookOrder.OBSERVE).remove)
        for block in blocks:
            merging = _Merging(ratio, size)
            undo.callback(register_hook(block, merging.choose, HookOrder.OBSERVE).remove)
            undo.callback(register_hook(block.get_submodule("attn1"), merging.attend, HookOrder.ADAPTER).remove)
        yield True


@dataclass
class _LatentSize:
    """Height and width of the latent [B,C,h,w] that the UNet got last."""

    height: int = 0
    width: int = 0

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.height, self.width = (args[0] if args else kwargs["sample"]).shape[2:]
        return inner(*args, **kwargs)


Map = Callable[[Tensor], Tensor]


@dataclass
class _Merging:
    """Merges the tokens of one block. They are matched by the block's input, before its norm."""

    ratio: float
    size: _LatentSize
    _maps: tuple[Map, Map] | None = None

    def choose(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Around the block: decide which of its tokens [B,T,C] are merged, where T is that of the finest resolution."""
        tokens: Tensor = args[0] if args else kwargs["hidden_states"]
        if tokens.shape[1] == self.size.height * self.size.width:
            from tomesd.merge import bipartite_soft_matching_random2d as match

            count = int(tokens.shape[1] * self.ratio)
            self._maps = match(tokens, self.size.width, self.size.height, STRIDE, STRIDE, count, no_rand=True)
        try:
            return inner(*args, **kwargs)
        finally:
            self._maps = None

    def attend(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Around the block's self-attention: on the merged tokens, and its result for all of them."""
        if self._maps is None:
            return inner(*args, **kwargs)
        merge, unmerge = self._maps
        return unmerge(inner(merge(args[0]), *args[1:], **kwargs))
