"""IA3: every row (or, on the input, every column) of the weight is scaled."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modules.adapters.algorithms.adapter import Adapter, Factors, common, number, require
from modules.errors import InvalidValueError

ENDS = frozenset({"weight", "on_input"})


@dataclass(frozen=True)
class Ia3(Adapter):
    """`factor` [out], or [in] if `on_input`."""

    factor: Tensor = field(default_factory=lambda: torch.empty(0))
    on_input: bool = False

    def plain_delta(self, weight: Tensor) -> Tensor:
        factor = self.factor.to(weight.device).float()
        if factor.numel() != weight.shape[1 if self.on_input else 0]:
            raise InvalidValueError(f"{factor.numel()} factors for a weight of {list(weight.shape)}")
        if self.on_input:
            return weight * factor.reshape(1, -1, *(1,) * (weight.ndim - 2))
        return weight * factor.reshape(-1, *(1,) * (weight.ndim - 1))


def read_ia3(factors: Factors) -> Ia3 | None:
    """None if the factors are not of this algorithm."""
    if not factors.keys() >= ENDS:
        return None
    require(factors, ("weight",), 1)
    fields: dict[str, Any] = common(factors)
    return Ia3(**fields, factor=factors["weight"], on_input=bool(number(factors, "on_input")))
