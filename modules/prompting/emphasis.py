"""Weights of a prompt in its encoding: the four emphasis modes."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Emphasis(StrEnum):
    """The values of the setting `emphasis`."""

    NONE = "None"  # brackets are text
    IGNORE = "Ignore"  # brackets are read and dropped
    ORIGINAL = "Original"  # multiply the encoding, then restore its mean
    NO_NORM = "No norm"  # multiply only: for encodings whose mean is too near zero to divide by


def apply_emphasis(hidden: Tensor, multipliers: Tensor, mode: Emphasis, counts: Tensor | None = None) -> Tensor:
    """Weigh the encoding of one chunk of every text of a schedule.

    `hidden` is [texts, 77, D], `multipliers` [texts, 77] float32; the result is like `hidden`. The mean that Original
    restores is one number for all texts together, as in the reference UI, which encodes the texts of one prompt's
    schedule as a batch. `counts` [texts] says how often each text stands in the schedule, if it is given once only.
    """
    if mode in (Emphasis.NONE, Emphasis.IGNORE):
        return hidden
    weighted = hidden * multipliers.to(hidden).unsqueeze(-1)
    if mode is Emphasis.NO_NORM:
        return weighted
    return weighted * (_mean(hidden, counts) / _mean(weighted, counts)).to(hidden.dtype)


def _mean(hidden: Tensor, counts: Tensor | None) -> Tensor:
    """Mean over everything, in float32 at least, each text weighing as often as it counts."""
    if counts is None:
        return hidden.mean(dtype=_precise(hidden))
    per_text = hidden.mean(dim=(1, 2), dtype=_precise(hidden))
    share = counts.to(per_text)
    return (per_text * share).sum() / share.sum()


def _precise(hidden: Tensor) -> torch.dtype:
    import torch

    return torch.promote_types(hidden.dtype, torch.float32)
