"""GLoRA: a low-rank delta, and one that depends on the weight itself."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modules.adapters.algorithms.adapter import Adapter, Factors, common, require

NAMES = ("a1.weight", "a2.weight", "b1.weight", "b2.weight")
ENDS = frozenset(NAMES)


@dataclass(frozen=True)
class Glora(Adapter):
    """delta = b2 @ b1 + weight @ a2 @ a1. Alpha means nothing here."""

    parts: Factors = field(default_factory=dict)

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """The file's own."""
        return self.parts[NAMES[0]].dtype

    def plain_delta(self, weight: Tensor) -> Tensor:
        a1, a2, b1, b2 = (self.parts[name].to(weight.device).flatten(1) for name in NAMES)
        matrix = weight.flatten(1).to(a1.dtype)
        return b2 @ b1 + (matrix @ a2) @ a1


def read_glora(factors: Factors) -> Glora | None:
    """None if the factors are not of this algorithm."""
    if not set(NAMES) <= factors.keys():
        return None
    require(factors, NAMES)
    fields: dict[str, Any] = common(factors)
    return Glora(**fields, parts={name: factors[name] for name in NAMES})
