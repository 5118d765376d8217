"""A part of a change: some programs train layers that are several here (query, key and value in one)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from modules.adapters.algorithms.adapter import Adapter
from modules.adapters.algorithms.full import Full
from modules.adapters.algorithms.glora import Glora
from modules.adapters.algorithms.ia3 import Ia3
from modules.adapters.algorithms.loha import Loha
from modules.adapters.algorithms.lokr import Lokr
from modules.adapters.algorithms.lora import Lora
from modules.errors import InvalidValueError
from modules.memory.changes import SideBranch
from modules.models.names.row_map import Rows

NOTHING = Lora()
BY_ROWS = (Lora, Loha, Lokr, Full, Ia3, Glora)
"""Algorithms of which a row of the change depends on the same row of the weight alone."""


@dataclass(eq=False)
class ColumnNorms:
    """The norms of the columns of a whole layer with its change at full strength, which DoRA with a magnitude for each
    column divides by. `weight` reads the whole layer's weight [out, in] in float32, as it is without adapters; that
    happens once."""

    change: Adapter
    weight: Callable[[], Tensor]
    _known: Tensor | None = None

    def on(self, device: torch.device) -> Tensor:
        """[1, in, ...]; on the meta device, where only shapes count, of no value."""
        if device.type == "meta":
            return torch.empty(1, device=device)
        if self._known is None:
            weight = self.weight()
            delta = self.change.weight_delta(weight)
            assert delta is not None
            norms = (weight + delta).transpose(0, 1).flatten(1).norm(dim=1)
            self._known = norms.reshape(1, -1, *(1,) * (weight.ndim - 2))
        return self._known.to(device)


@dataclass(frozen=True)
class RowsOf(Adapter):
    """Rows of `inner`, which is made for a layer of `height` rows, these rows in this order. `norms`: of DoRA with a
    magnitude for each column."""

    inner: Adapter = field(default=NOTHING)
    rows: Rows = ()
    height: int = 0
    norms: ColumnNorms | None = None

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
        if self.norms is not None:
            return self._by_columns(weight, self.norms)
        delta = self.inner.weight_delta(self._whole(weight))
        return None if delta is None else self._rows(delta)

    def _by_columns(self, weight: Tensor, norms: ColumnNorms) -> Tensor:
        magnitude = self.inner.dora_scale
        delta = norms.change.weight_delta(self._whole(weight))
        assert magnitude is not None and delta is not None
        factor = magnitude.to(weight.device).float().reshape(1, -1, *(1,) * (weight.ndim - 2)) / norms.on(weight.device)
        return ((weight + self._rows(delta)) * factor - weight) * self.inner.strength

    def bias_delta(self, bias: Tensor | None) -> Tensor | None:
        """See `LayerChange`."""
        delta = self.inner.bias_delta(None)
        return None if delta is None else self._rows(delta)

    def branch(self) -> SideBranch | None:
        """See `LayerChange`."""
        branch = self.inner.branch()
        return None if branch is None else replace(branch, up=self._rows(branch.up))

    def at(self, strength: float, dynamic_rank: int | None) -> "RowsOf":
        """Return the same change at another strength."""
        return replace(self, inner=self.inner.at(strength, dynamic_rank))

    def _whole(self, weight: Tensor) -> Tensor:
        """A tensor of the whole layer's shape with these rows; the algorithms that are allowed here ask for no more."""
        whole, at = weight.new_zeros(self.height, *weight.shape[1:]), 0
        for begin, end in self.rows:
            whole[begin:end] = weight[at : at + end - begin]
            at += end - begin
        return whole

    def _rows(self, tensor: Tensor) -> Tensor:
        runs = [tensor[begin:end] for begin, end in self.rows]
        return runs[0] if len(runs) == 1 else torch.cat(runs)


def rows_of(adapter: Adapter, rows: Rows, height: int, norms: ColumnNorms | None = None) -> RowsOf:
    """The share of some rows in a change of a layer with `height` rows; with `norms`, where `needs_norms` says so.
    Raises `InvalidValueError` for an algorithm whose rows depend on other rows of the weight."""
    if not isinstance(adapter, BY_ROWS):
        raise InvalidValueError(
            f"{type(adapter).__name__} on a layer that holds query, key and value together is not possible here: "
            "LoRA, DoRA, LoHa, LoKr, IA3, GLoRA and whole differences are."
        )
    return RowsOf(inner=adapter, rows=rows, height=height, norms=norms)


def needs_norms(adapter: Adapter, height: int) -> bool:
    """Whether it is DoRA with a magnitude for each column of a layer of `height` rows."""
    magnitude = adapter.dora_scale
    return magnitude is not None and (magnitude.shape[0] == 1 or magnitude.shape[0] != height)


def plain_change(adapter: Adapter) -> Adapter:
    """Return what DoRA adds before it decomposes the sum."""
    return replace(adapter, strength=1.0, dora_scale=None)
