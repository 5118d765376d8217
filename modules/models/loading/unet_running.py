"""How a UNet's call is made: all rows of a batch at once or in pieces, where its weights lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

# (x [N,C,h,w], timesteps [N], conditioning with N rows) -> prediction [N,C,h,w]
Predict = Callable[[Tensor, Tensor, Any], Tensor]


@dataclass
class UnetRunner:
    """Runs the UNet of one model. `pieces`: into how many parts a batch is cut; `rows` and `elements` of
    its inputs: of the last call.

    `device` and `dtype` are where and in what it computes; None: as the plan says.
    """

    pieces: int = 1
    rows: int = 0
    part: tuple[int, int] = field(default=(0, 0), compare=False)  # the rows that are computed now, first and last + 1
    elements: int = field(default=0, compare=False)
    device: torch.device | None = None
    dtype: torch.dtype | None = None

    def run(self, predict: Predict, x: Tensor, timesteps: Tensor, context: Any) -> Tensor:
        """The prediction for all rows."""
        self.rows, self.elements = x.shape[0], x.numel()
        self.part = (0, self.rows)
        if self.pieces <= 1:
            return predict(x, timesteps, context)
        size, rows, parts = -(-self.rows // self.pieces), self.rows, []
        try:
            for first in range(0, rows, size):
                last = min(first + size, rows)
                self.part = (first, last)
                parts.append(predict(x[first:last], timesteps[first:last], rows_of(context, first, last)))
        finally:
            self.part = (0, rows)
        return torch.cat(parts)


def rows_of(value: Any, first: int, last: int) -> Any:
    """Rows of every tensor (with dimensions) in a conditioning: a tensor, a data class, a dict, a list of such."""
    if isinstance(value, Tensor):
        return value[first:last] if value.ndim else value
    if isinstance(value, dict):
        return {key: rows_of(item, first, last) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: rows_of(getattr(value, f.name), first, last) for f in fields(value)})
    if isinstance(value, tuple | list):
        return type(value)(rows_of(item, first, last) for item in value)
    return value
