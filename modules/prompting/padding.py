"""Conditionings of unequal length side by side in one batch."""

from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor


class CondPadding(StrEnum):
    """What to do when prompt and negative prompt have different numbers of tokens."""

    NONE = "none"  # two calls of the model
    EMPTY = "pad_cond_uncond"  # the shorter one is filled up with the encoding of the empty prompt
    REPEAT = "pad_cond_uncond_v0"  # the negative prompt is cut, or filled up with its last vector


def pad_conditionings(cond: Tensor, uncond: Tensor, mode: CondPadding, empty: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Bring `cond` [B, T, D] and `uncond` [B', T', D] to the same number of tokens, as far as `mode` does that.

    `empty` is the encoding of the empty prompt, [77, D]. Also says whether anything was changed, for the infotext.
    """
    if mode is CondPadding.NONE or cond.shape[1] == uncond.shape[1]:
        return cond, uncond, False
    if mode is CondPadding.REPEAT:
        return cond, fit_tokens(uncond, cond.shape[1]), True
    missing = (cond.shape[1] - uncond.shape[1]) // empty.shape[0]
    if missing > 0:
        uncond = _append_empty(uncond, empty, missing)
    elif missing < 0:
        cond = _append_empty(cond, empty, -missing)
    return cond, uncond, missing != 0


def fit_tokens(encoding: Tensor, tokens: int) -> Tensor:
    """`encoding` [..., T, D] cut to `tokens`, or filled up to them with its last vector."""
    missing = tokens - encoding.shape[-2]
    if missing <= 0:
        return encoding[..., :tokens, :]
    last = encoding[..., -1:, :].expand(*encoding.shape[:-2], missing, encoding.shape[-1])
    return torch.cat([encoding, last], dim=-2)


def stack_encodings(encodings: Sequence[Tensor]) -> Tensor:
    """Encodings [T, D] of any lengths as one batch [B, max T, D]; shorter ones repeat their last vector."""
    longest = max(encoding.shape[0] for encoding in encodings)
    return torch.stack([fit_tokens(encoding, longest) for encoding in encodings])


def _append_empty(encoding: Tensor, empty: Tensor, times: int) -> Tensor:
    return torch.cat([encoding, empty.to(encoding).repeat(encoding.shape[0], times, 1)], dim=1)
