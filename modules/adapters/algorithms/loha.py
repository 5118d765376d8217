"""LoHa: the elementwise product of two low-rank products."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modules.adapters.algorithms.adapter import Adapter, Factors, common, product, require, tucker

HALVES = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
CORES = ("hada_t1", "hada_t2")
ENDS = frozenset({*HALVES, *CORES})
NONE = torch.empty(0)


@dataclass(frozen=True)
class Loha(Adapter):
    """Two pairs a [out, r] and b [r, in]; with cores [r, r, *kernel] the pairs are [r, out] and [r, in]."""

    a1: Tensor = field(default=NONE)
    b1: Tensor = field(default=NONE)
    a2: Tensor = field(default=NONE)
    b2: Tensor = field(default=NONE)
    core1: Tensor | None = None
    core2: Tensor | None = None

    @property
    def rank(self) -> int:
        return self.b1.shape[0]

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """The file's own."""
        return self.a1.dtype

    def plain_delta(self, weight: Tensor) -> Tensor:
        first = _half(self.a1, self.b1, self.core1, weight)
        return first * _half(self.a2, self.b2, self.core2, weight)


def _half(a: Tensor, b: Tensor, core: Tensor | None, weight: Tensor) -> Tensor:
    a, b = a.to(weight.device), b.to(weight.device)
    return product(a, b) if core is None else tucker(core.to(weight.device), a, b)


def read_loha(factors: Factors) -> Loha | None:
    """None if the factors are not of this algorithm."""
    if not set(HALVES) <= factors.keys():
        return None
    require(factors, ENDS)
    fields: dict[str, Any] = common(factors)
    return Loha(
        **fields,
        a1=factors["hada_w1_a"],
        b1=factors["hada_w1_b"],
        a2=factors["hada_w2_a"],
        b2=factors["hada_w2_b"],
        core1=factors.get("hada_t1"),
        core2=factors.get("hada_t2"),
    )
