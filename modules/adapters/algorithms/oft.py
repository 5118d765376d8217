"""OFT and BOFT: the weight's rows are rotated, in blocks, or in a butterfly of blocks."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modules.adapters.algorithms.adapter import Adapter, Factors, common, require
from modules.errors import InvalidValueError

ENDS = frozenset({"oft_blocks", "oft_diag", "rescale"})
SMALL = 1e-8


@dataclass(frozen=True)
class Oft(Adapter):
    """`blocks` [n, b, b] (OFT) or [m, n, b, b] (BOFT): what the Cayley transform makes rotations of, or, with
    `are_rotations`, rotations already. `constraint` times the number of rows limits the norm of the blocks."""

    blocks: Tensor = field(default_factory=lambda: torch.empty(0))
    are_rotations: bool = False
    constraint: float = 0.0
    rescale: Tensor | None = None

    @property
    def scale(self) -> float:
        """A rotation is not scaled."""
        return 1.0

    def plain_delta(self, weight: Tensor) -> Tensor:
        *_, count, size, other_size = self.blocks.shape
        if size != other_size or count * size != weight.shape[0] or not self._rescales(weight):
            raise InvalidValueError(f"{count} blocks of {size} rows for a weight of {list(weight.shape)}")
        rotations = self._rotations(weight)
        rotated = _butterfly(rotations, weight) if rotations.ndim == 4 else _in_blocks(rotations, weight)
        if self.rescale is not None:
            rotated = rotated * self.rescale.to(weight.device).float().reshape(-1, *(1,) * (weight.ndim - 1))
        return rotated - weight

    def _rescales(self, weight: Tensor) -> bool:
        return self.rescale is None or self.rescale.numel() == weight.shape[0]

    def _rotations(self, weight: Tensor) -> Tensor:
        blocks = self.blocks.to(weight.device).float()
        if self.are_rotations:
            return blocks
        skew = blocks - blocks.transpose(-1, -2)
        limit = self.constraint * weight.shape[0]
        if limit:
            norm = skew.norm()
            skew = skew * ((norm.clamp(max=limit) + SMALL) / (norm + SMALL))
        eye = torch.eye(skew.shape[-1], device=weight.device)
        rotations: Tensor = (eye + skew) @ torch.linalg.inv(eye - skew)
        return rotations


def _in_blocks(rotations: Tensor, weight: Tensor) -> Tensor:
    """Each block of rows is mixed by the transpose of its rotation."""
    count, size, _ = rotations.shape
    rows = weight.reshape(count, size, -1)
    return torch.einsum("knm,knc->kmc", rotations, rows).reshape(weight.shape)


def _butterfly(rotations: Tensor, weight: Tensor) -> Tensor:
    """BOFT: at each of m levels rows are shuffled, mixed in blocks, and shuffled back."""
    levels, _, size, _ = rotations.shape
    rows = weight.flatten(1)
    for level in range(levels):
        stride = 2**level * (size // 2)
        shuffled = rows.reshape(-1, 2, stride, rows.shape[1]).transpose(1, 2).reshape(rows.shape)
        mixed = torch.einsum("bij,bjc->bic", rotations[level], shuffled.reshape(-1, size, rows.shape[1]))
        rows = mixed.reshape(-1, stride, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)
    return rows.reshape(weight.shape)


def read_oft(factors: Factors) -> Oft | None:
    """None if the factors are not of this algorithm."""
    blocks = factors.get("oft_blocks", factors.get("oft_diag"))
    if blocks is None:
        return None
    require(factors, ("oft_blocks", "oft_diag"), 3)
    require(factors, ("rescale",), 1)
    fields: dict[str, Any] = common(factors)
    alpha = fields.pop("alpha")
    return Oft(
        **fields,
        blocks=blocks,
        are_rotations="oft_diag" in factors,
        constraint=alpha or 0.0,
        rescale=factors.get("rescale"),
    )
