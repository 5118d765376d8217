"""Whole differences: of a layer's weight and bias, or of a norm's."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modules.adapters.algorithms.adapter import Adapter, Factors, common, require

ENDS = frozenset({"diff", "diff_b", "w_norm", "b_norm"})


@dataclass(frozen=True)
class Full(Adapter):
    """`weight` as it is added; None: only the bias changes."""

    weight: Tensor | None = None

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """The file's own."""
        return None if self.weight is None else self.weight.dtype

    def plain_delta(self, weight: Tensor) -> Tensor:
        return torch.zeros_like(weight) if self.weight is None else self.weight.to(weight.device).float()

    def weight_delta(self, weight: Tensor) -> Tensor | None:
        """See `LayerChange`."""
        return None if self.weight is None else super().weight_delta(weight)


def read_full(factors: Factors) -> Full | None:
    """None if the factors are not of this algorithm."""
    if not ENDS & factors.keys():
        return None
    require(factors, ENDS, 1)
    fields: dict[str, Any] = common(factors)
    if "b_norm" in factors:
        fields["added_bias"] = factors["b_norm"]
    return Full(**fields, weight=factors.get("diff", factors.get("w_norm")))
