"""What another order of the same sums may change: the bound of tests that compare numbers and not bits.

Which order a sum of products is taken in depends on the CPU's instructions, the threads and even on where a weight
begins in memory. n products added in two orders differ, relative to what was added, by about sqrt(n) units of rounding
(Higham and Mary 2019, doi:10.1137/18M1226312: at most lambda * sqrt(n) of them, but for a probability that falls as
exp(-lambda^2 / 2)). A fault (a stale weight, a slice left out) changes whole percents.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

LAMBDA = 8
"""For sums behind each other: of random signs, the errors of a network's layers grow as the root of its depth."""


def rounding(length: int, dtype: torch.dtype = torch.float32) -> float:
    """Return the relative difference that sums of `length` products may have."""
    return LAMBDA * sqrt(length) * torch.finfo(dtype).eps / 2


def rounding_of(module: nn.Module, positions: int = 1) -> float:
    """Return that of a network in float32: of its longest sum, and of `positions`, over which gradients are summed."""
    weights = [weight for weight in module.parameters() if isinstance(weight, Tensor) and weight.dim() > 1]
    return rounding(max(positions, *(weight[0].numel() for weight in weights)))
