"""Token merging (Bolya and Hoffman 2023, arXiv:2303.17604): faster self-attention on fewer tokens, by `tomesd`."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

MERGEABLE = "BasicTransformerBlock"
"""Blocks that `tomesd` knows; transformers of image and text have others."""


@contextmanager
def merged_tokens(unet: nn.Module, ratio: float) -> Iterator[bool]:
    """While open, the UNet's self-attention merges `ratio` (0 to 0.9) of its tokens at the finest resolution.

    Deterministic: which tokens are merged is not drawn at random. With 0, and for a network without such blocks,
    nothing is touched; gives whether something is.
    """
    if ratio <= 0 or not can_merge_tokens(unet):
        yield False
        return
    import tomesd

    tomesd.apply_patch(unet, ratio=ratio, use_rand=False, merge_attn=True, merge_crossattn=False, merge_mlp=False)
    try:
        yield True
    finally:
        tomesd.remove_patch(unet)


def can_merge_tokens(adapter: nn.Module) -> bool:
    """Whether merging has an effect on this network."""
    return any(kind.__name__ == MERGEABLE for module in adapter.modules() for kind in type(module).__mro__)
