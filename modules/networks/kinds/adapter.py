"""What the kinds of networks share: strength, alpha, the magnitude of DoRA, small algebra.

Sources: LoRA (Hu et al. 2021, arXiv:2106.09685), LyCORIS (Yeh et al. 2023, arXiv:2309.14859), DoRA (Liu et al. 2024,
arXiv:2402.09353), OFT (Qiu et al. 2023, arXiv:2306.07280), BOFT (Liu et al. 2023, arXiv:2311.06243), IA3 (Liu et al.
2022, arXiv:2205.05638), GLoRA (Chavan et al. 2023, arXiv:2306.07967).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from modules.memory.changes import SideBranch

Factors = Mapping[str, Tensor]
"""The tensors of one layer in a file, by the end of their name ("lora_up.weight", "alpha" ...)."""


@dataclass(frozen=True)
class Adapter(ABC):
    """One network's change to one layer; satisfies `LayerChange`.

    `rank` and `alpha` give the scale alpha / rank; without either it is 1. `fixed_scale` stands in some files instead.
    `dynamic_rank` uses the first so many ranks of a LoRA only.
    """

    strength: float = 1.0
    dynamic_rank: int | None = None
    alpha: float | None = None
    fixed_scale: float | None = None
    dora_scale: Tensor | None = None
    added_bias: Tensor | None = None

    @property
    def rank(self) -> int | None:
        """The inner dimension that alpha is divided by."""
        return None

    @property
    def scale(self) -> float:
        """What the kind's own delta is multiplied by, before the strength."""
        if self.fixed_scale is not None:
            return self.fixed_scale
        if self.alpha is not None and self.rank:
            return self.alpha / self.rank
        return 1.0

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """See `LayerChange`."""
        return None

    @abstractmethod
    def plain_delta(self, weight: Tensor) -> Tensor:
        """The delta at scale 1 and strength 1, without DoRA, in float32 or the file's dtype as other programs do it."""

    def plain_bias(self) -> Tensor | None:
        """The bias's delta at strength 1."""
        return None

    def branch(self) -> SideBranch | None:
        """Only factorable kinds have one."""
        return None

    def weight_delta(self, weight: Tensor) -> Tensor | None:
        """See `LayerChange`."""
        delta = _fit(self.plain_delta(weight).to(weight.device), weight).float()
        if self.added_bias is not None:
            delta = delta + self.added_bias.to(weight.device).float().reshape(delta.shape)
        delta = delta * self.scale
        if self.dora_scale is not None:
            delta = _decomposed(weight, delta, self.dora_scale.to(weight.device).float())
        return delta * self.strength

    def bias_delta(self, bias: Tensor | None) -> Tensor | None:
        """See `LayerChange`."""
        delta = self.plain_bias()
        return None if delta is None else delta.float() * self.strength

    def at(self, strength: float, dynamic_rank: int | None) -> "Adapter":
        """The same change at another strength."""
        return replace(self, strength=strength, dynamic_rank=dynamic_rank)


def common(factors: Factors) -> dict[str, object]:
    """The fields that any kind may carry."""
    alpha, scale = factors.get("alpha"), factors.get("scale")
    return {
        "alpha": None if alpha is None else float(alpha),
        "fixed_scale": None if scale is None else float(scale),
        "dora_scale": factors.get("dora_scale"),
    }


def product(up: Tensor, down: Tensor, rank: int | None = None) -> Tensor:
    """up [out, r, ...] times down [r, in, ...] as matrices, over the first `rank` of r, in their own dtype."""
    up, down = up.flatten(1), down.flatten(1)
    return up[:, :rank] @ down[:rank]


def tucker(core: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """core [i, j, *kernel] with left [i, out] and right [j, in]: a kernel [out, in, *kernel] (CP / Tucker form)."""
    return torch.einsum("ij...,io,jn->on...", core, left, right)


def _fit(delta: Tensor, weight: Tensor) -> Tensor:
    """A delta in the weight's shape. For UNets with more input channels (inpainting) the added ones get zero."""
    if delta.numel() == weight.numel():
        return delta.reshape(weight.shape)
    if weight.ndim == 4 and delta.numel() < weight.numel():
        delta = delta.reshape(weight.shape[0], -1, *weight.shape[2:])
        return torch.nn.functional.pad(delta, (0, 0, 0, 0, 0, weight.shape[1] - delta.shape[1]))
    return delta.expand(weight.shape)


def _decomposed(weight: Tensor, delta: Tensor, magnitude: Tensor) -> Tensor:
    """DoRA: weight + delta keeps its direction and gets the trained magnitude, one a column or one a row."""
    merged = weight + delta
    rows = magnitude.shape[0] == weight.shape[0] and magnitude.shape[0] != 1
    if rows:
        norm = merged.flatten(1).norm(dim=1)
        shape = (-1, *(1,) * (merged.ndim - 1))
    else:
        norm = merged.transpose(0, 1).flatten(1).norm(dim=1)
        shape = (1, -1, *(1,) * (merged.ndim - 2))
    decomposed: Tensor = merged * (magnitude.reshape(shape) / norm.reshape(shape)) - weight
    return decomposed
