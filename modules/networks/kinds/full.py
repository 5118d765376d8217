"""Whole differences: of a layer's weight and bias, or of a norm's."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modules.networks.kinds.adapter import Adapter, Factors, common


@dataclass(frozen=True)
class Full(Adapter):
    """`weight` and `bias` as they are added."""

    weight: Tensor = field(default_factory=lambda: torch.empty(0))
    bias: Tensor | None = None

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """The file's own."""
        return self.weight.dtype

    def plain_delta(self, weight: Tensor) -> Tensor:
        return self.weight.to(weight.device).float()

    def plain_bias(self) -> Tensor | None:
        return self.bias


def read_full(factors: Factors) -> Full | None:
    """None if the factors are not of this kind."""
    for weight, bias in (("diff", "diff_b"), ("w_norm", "b_norm")):
        if weight in factors:
            fields: dict[str, Any] = common(factors)
            return Full(**fields, weight=factors[weight], bias=factors.get(bias))
    return None
