"""LoRA: up @ down, for convolutions also with the kernel in the middle (CP form)."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modules.adapters.algorithms.adapter import Adapter, Factors, common, product, require
from modules.memory.changes import SideBranch

NONE = torch.empty(0)
UP_DOWN = (
    ("lora_up.weight", "lora_down.weight"),
    ("lora_B.weight", "lora_A.weight"),
    ("lora.up.weight", "lora.down.weight"),
    ("lora_linear_layer.up.weight", "lora_linear_layer.down.weight"),
    ("lora_B", "lora_A"),
)
MID = ("lora_mid.weight",)
ENDS = frozenset({*MID, *(name for pair in UP_DOWN for name in pair)})


@dataclass(frozen=True)
class Lora(Adapter):
    """`down` [r, in, ...], `up` [out, r, ...], `mid` [r, r, *kernel] or None."""

    down: Tensor = field(default=NONE)
    up: Tensor = field(default=NONE)
    mid: Tensor | None = None

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    def plain_delta(self, weight: Tensor) -> Tensor:
        up, down = self.up.to(weight.device), self.down.to(weight.device)
        if self.mid is not None:
            mid = self.mid.to(weight.device).float()
            return torch.einsum("nm...,on,mi->oi...", mid, up.float().flatten(1), down.float().flatten(1))
        delta = product(up.float(), down.float(), self.dynamic_rank)
        is_matrix = down.ndim == 2 and delta.numel() == weight.numel()
        return delta if is_matrix else delta.reshape(len(delta), down.shape[1], *(down.shape[2:] or (1, 1)))

    def branch(self) -> SideBranch | None:
        """See `LayerChange`."""
        if self.dora_scale is not None or self.added_weight is not None or self.added_bias is not None:
            return None
        used = slice(None) if self.mid is not None else slice(0, self.dynamic_rank)
        return SideBranch(self.down[used], self.up[:, used], self.mid, self.scale * self.strength)


def read_lora(factors: Factors) -> Lora | None:
    """None if the factors are not of this algorithm."""
    for up_name, down_name in UP_DOWN:
        if up_name in factors and down_name in factors:
            require(factors, (up_name, down_name, *MID))
            fields: dict[str, Any] = common(factors)
            mid = next((factors[name] for name in MID if name in factors), None)
            return Lora(**fields, up=factors[up_name], down=factors[down_name], mid=mid)
    return None
