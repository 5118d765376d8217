"""Latents as the tokens of transformers that read 2 x 2 of them at a time, and back."""

import torch
from torch import Tensor
from torch.nn import functional as F

PATCH, POSITIONS = 2, 3


def packed(x: Tensor, index: int = 0) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Latents [B,C,h,w] as tokens [B,T,4C] of 2 x 2 latents, channels in the order (c ph pw), with their positions
    [T,3] (`index`, y, x) and the size (height, width) of the image in tokens. Latents of an odd side are continued by
    their last row or column for it."""
    height, width = x.shape[-2:]
    x = F.pad(x, (0, -width % PATCH, 0, -height % PATCH), mode="replicate")
    patches = F.pixel_unshuffle(x, PATCH)
    rows, columns = patches.shape[-2:]
    ids = torch.zeros(rows, columns, POSITIONS, device=x.device)
    ids[..., 0] = index
    ids[..., 1] = torch.arange(rows, device=x.device)[:, None]
    ids[..., 2] = torch.arange(columns, device=x.device)[None, :]
    return patches.flatten(2).transpose(1, 2), ids.reshape(-1, POSITIONS), (rows, columns)


def unpacked(tokens: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of `packed`, of tokens [B,T,4C]."""
    return F.pixel_shuffle(tokens.transpose(1, 2).reshape(len(tokens), -1, rows, columns), PATCH)
