"""Conditionings of unequal length side by side in one batch."""

from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.prompting.conditioning import Conditioning


class CondPadding(StrEnum):
    """Ways to go on when prompt and negative prompt have different numbers of tokens."""

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


def stack_masks(conditionings: Sequence[Conditioning]) -> Tensor | None:
    """The masks of `stack_conditionings` [B, max T], on the CPU; None where no conditioning has one."""
    if all(item.mask is None for item in conditionings):
        return None
    longest = max(item.crossattn.shape[0] for item in conditionings)
    rows = []
    for item in conditionings:
        tokens = item.crossattn.shape[0]
        mask = torch.ones(tokens, dtype=torch.bool) if item.mask is None else item.mask.cpu()
        rows.append(F.pad(mask, (0, longest - tokens)))
    return torch.stack(rows)


def stack_conditionings(conditionings: Sequence[Conditioning]) -> Tensor:
    """Encodings of any lengths as one batch [B, max T, D]: shorter ones are filled up with zeros where a conditioning
    has a mask, see `stack_masks`, else with their last vector."""
    encodings = [item.crossattn for item in conditionings]
    if all(item.mask is None for item in conditionings):
        return stack_encodings(encodings)
    longest = max(encoding.shape[0] for encoding in encodings)
    return torch.stack([fill_with_zeros(encoding, longest) for encoding in encodings])


def fill_with_zeros(encoding: Tensor, tokens: int) -> Tensor:
    """`encoding` [..., T, D] filled up to `tokens` with zeros."""
    return F.pad(encoding, (0, 0, 0, tokens - encoding.shape[-2]))


def pad_masked(cond: Tensor, cond_mask: Tensor, uncond: Tensor, uncond_mask: Tensor) -> tuple[Tensor, Tensor]:
    """`cond` [B, T, D] and `uncond` [B', T', D] as one batch of equal length, and its mask, both padded with zeros."""
    longest = max(cond.shape[1], uncond.shape[1])
    both = torch.cat([fill_with_zeros(cond, longest), fill_with_zeros(uncond, longest)])
    masks = [F.pad(mask, (0, longest - mask.shape[1])) for mask in (cond_mask, uncond_mask)]
    return both, torch.cat(masks)


def _append_empty(encoding: Tensor, empty: Tensor, times: int) -> Tensor:
    return torch.cat([encoding, empty.to(encoding).repeat(encoding.shape[0], times, 1)], dim=1)
