"""LoKr: a Kronecker product, each side whole or itself of low rank."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modules.adapters.algorithms.adapter import Adapter, Factors, common, product, require, tucker

ENDS = frozenset(f"lokr_{name}" for name in ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b", "t2"))


@dataclass(frozen=True)
class Lokr(Adapter):
    """The tensors by their names in files: w1, or w1_a and w1_b; w2, or w2_a and w2_b, perhaps with the core t2."""

    parts: Factors = field(default_factory=dict)

    @property
    def rank(self) -> int | None:
        """Whole sides have none, and then alpha means nothing."""
        low = [self.parts[name].shape[0] for name in ("w1_b", "w2_b") if name in self.parts]
        return low[-1] if low else None

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """The file's own."""
        return next(iter(self.parts.values())).dtype

    def plain_delta(self, weight: Tensor) -> Tensor:
        parts = {name: tensor.to(weight.device) for name, tensor in self.parts.items()}
        first = parts["w1"] if "w1" in parts else product(parts["w1_a"], parts["w1_b"])
        if "w2" in parts:
            second = parts["w2"]
        elif "t2" in parts:
            second = tucker(parts["t2"], parts["w2_a"], parts["w2_b"])
        else:
            second = product(parts["w2_a"], parts["w2_b"])
            if parts["w2_b"].ndim == 4:
                second = second.reshape(second.shape[0], -1, *parts["w2_b"].shape[2:])
        if second.ndim == 4:
            first = first.reshape(*first.shape, 1, 1)
        return torch.kron(first.contiguous(), second.contiguous())


def read_lokr(factors: Factors) -> Lokr | None:
    """None if the factors are not of this algorithm."""
    parts = {name.removeprefix("lokr_"): tensor for name, tensor in factors.items() if name.startswith("lokr_")}
    has_first = "w1" in parts or {"w1_a", "w1_b"} <= parts.keys()
    if not has_first or not ("w2" in parts or {"w2_a", "w2_b"} <= parts.keys()):
        return None
    require(factors, ENDS)
    fields: dict[str, Any] = common(factors)
    return Lokr(**fields, parts=parts)
