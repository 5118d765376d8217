"""Token merging (Bolya and Hoffman 2023, arXiv:2303.17604): faster self-attention on fewer tokens, by `tomesd`."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def merged_tokens(unet: nn.Module, ratio: float) -> Iterator[None]:
    """While open, the UNet's self-attention merges `ratio` (0 to 0.9) of its tokens at the finest resolution.

    Deterministic: which tokens are merged is not drawn at random. With 0 nothing is touched.
    """
    if ratio <= 0:
        yield
        return
    import tomesd

    tomesd.apply_patch(unet, ratio=ratio, use_rand=False, merge_attn=True, merge_crossattn=False, merge_mlp=False)
    try:
        yield
    finally:
        tomesd.remove_patch(unet)
