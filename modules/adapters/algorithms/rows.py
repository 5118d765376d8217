"""A part of a change: some programs train layers that are several here (query, key and value in one)."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from modules.adapters.algorithms.adapter import Adapter
from modules.adapters.algorithms.full import Full
from modules.adapters.algorithms.loha import Loha
from modules.adapters.algorithms.lokr import Lokr
from modules.adapters.algorithms.lora import Lora
from modules.errors import InvalidValueError
from modules.memory.changes import SideBranch
from modules.models.names.row_map import Rows

NOTHING = Lora()


@dataclass(frozen=True)
class RowsOf(Adapter):
    """Of `inner`, which is made for a layer of `height` rows, these rows in this order."""

    inner: Adapter = field(default=NOTHING)
    rows: Rows = ()
    height: int = 0

    @property
    def rank(self) -> int | None:
        return self.inner.rank

    @property
    def sum_dtype(self) -> torch.dtype | None:
        return self.inner.sum_dtype

    def plain_delta(self, weight: Tensor) -> Tensor:
        return self._rows(self.inner.plain_delta(self._whole(weight)))

    def weight_delta(self, weight: Tensor) -> Tensor | None:
        """See `LayerChange`."""
        delta = self.inner.weight_delta(self._whole(weight))
        return None if delta is None else self._rows(delta)

    def bias_delta(self, bias: Tensor | None) -> Tensor | None:
        """See `LayerChange`."""
        delta = self.inner.bias_delta(None)
        return None if delta is None else self._rows(delta)

    def branch(self) -> SideBranch | None:
        """See `LayerChange`."""
        branch = self.inner.branch()
        return None if branch is None else replace(branch, up=self._rows(branch.up))

    def at(self, strength: float, dynamic_rank: int | None) -> "RowsOf":
        """The same change at another strength."""
        return replace(self, inner=self.inner.at(strength, dynamic_rank))

    def _whole(self, weight: Tensor) -> Tensor:
        """A tensor of the whole layer's shape; the algorithms that are allowed here ask for no more."""
        return weight.new_zeros(self.height, *weight.shape[1:])

    def _rows(self, tensor: Tensor) -> Tensor:
        runs = [tensor[begin:end] for begin, end in self.rows]
        return runs[0] if len(runs) == 1 else torch.cat(runs)


def rows_of(adapter: Adapter, rows: Rows, height: int) -> RowsOf:
    """The share of some rows in a change of a layer with `height` rows. Raises `InvalidValueError` for an algorithm
    whose rows depend on the whole weight."""
    if not isinstance(adapter, Lora | Loha | Lokr | Full) or adapter.dora_scale is not None:
        raise InvalidValueError(
            f"{type(adapter).__name__} on a layer that holds query, key and value together is not possible here: "
            "LoRA, LoHa, LoKr and whole differences are, without weight decomposition."
        )
    return RowsOf(inner=adapter, rows=rows, height=height)
