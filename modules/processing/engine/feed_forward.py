"""How a job cuts the feed-forwards of its UNet, by setting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from modules.errors import InvalidValueError
from modules.memory.attention import MAX_SCORE_BYTES, MiB, free_bytes
from modules.memory.feed_forward import SplitOptions, split_feed_forward

CHOICES = ("Off", "Automatic", "2", "4", "8")
MIN_BYTES = 4 * MiB  # smaller calls are left whole: there is nothing to save


def split_options(setting: str) -> SplitOptions | None:
    """Read the setting `split_feed_forward`; None: nothing is split. Raises `InvalidValueError`.

    A number cuts the hidden dimension into so many slices, summed in float32. Automatic keeps one feed-forward within
    a quarter of the free memory (256 MB where the device does not say), tokens first, which changes no number.
    """
    if setting == "Off":
        return None
    if setting == "Automatic":
        return SplitOptions(budget_bytes=_budget, fp32_accumulation=True, least_bytes=MIN_BYTES)
    if setting not in CHOICES:
        raise InvalidValueError(f"split_feed_forward is {setting!r}. Allowed: {', '.join(CHOICES)}.")
    return SplitOptions(num_splits=int(setting), fp32_accumulation=True, least_bytes=MIN_BYTES)


def _budget(device: torch.device) -> int:
    free = None if device.type == "cpu" else free_bytes(device)
    return MAX_SCORE_BYTES if free is None else max(MiB, free // 4)


@contextmanager
def using_split_feed_forward(adapter: nn.Module, setting: str, few_pieces: bool = False) -> Iterator[None]:
    """While open, the feed-forwards of `adapter` compute as the setting says; afterwards as before. `few_pieces`: for
    dry runs, see `SplitOptions`."""
    options = split_options(setting)
    if options is None:
        yield
        return
    options = replace(options, few_pieces=few_pieces)
    with split_feed_forward(adapter, options):
        yield
