"""The slices of a Linear that one piece of a feed-forward needs: only they are decoded, or they are views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.memory.changes import AllBranches, Branches
from modules.memory.feed_forward.pattern import is_plain_linear
from modules.memory.hook_chain import has_foreign_forward, hooks_of
from modules.memory.layer import Kept, Part, SideBranches, read_part, read_weight, stored_state


def is_readable(layer: nn.Module) -> bool:
    """Whether what the layer computes can be seen from its weights: nothing of others' hangs on its forward."""
    if not is_plain_linear(layer) or has_hooks(layer):
        return False
    state = stored_state(layer)
    return state is None or _parts(state.branches) is not None


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody waits for this module to be called."""
    hooks: Any = module
    waiting = (hooks._forward_hooks, hooks._forward_pre_hooks, hooks._backward_hooks, hooks._backward_pre_hooks)
    return any(waiting) or has_foreign_forward(module) or bool(hooks_of(module))


def has_gradients(layer: nn.Module) -> bool:
    """Whether anything that the layer computes with is being trained."""
    state = stored_state(layer)
    parts = (_parts(state.branches) or ()) if state is not None else ()
    factors = [factor for part in parts for factor in (part.down, part.up, part.scale)]
    tensors = (*layer.parameters(recurse=False), *factors)
    return any(tensor.requires_grad for tensor in tensors)


def must_be_decoded(layer: nn.Module) -> bool:
    """Whether using the weight makes another one in memory."""
    state = stored_state(layer)
    weight = layer._parameters.get("weight")
    if state is None or weight is None or "weight" not in state.formats:
        return False
    return weight.dtype != state.compute_dtype or bool(state.changes) or state.fetch is not None


def cast_input(layer: nn.Module, x: Tensor) -> Tensor:
    """`x` as the layer would cast it."""
    state = stored_state(layer)
    if state is not None and state.cast_inputs and x.is_floating_point():
        return x.to(state.compute_dtype)
    return x


Brought = Mapping[Part, Kept]
"""Parts of weights that are offloaded, brought here for one slice."""


@dataclass
class LayerReader:
    """Reads one layer during one call, slice by slice. A weight with changes on it is decoded once for all slices,
    unless gradients would keep it alive."""

    layer: Any
    keep: bool
    _whole: Tensor | None = None

    def row_parts(self, start: int, stop: int) -> list[Part]:
        """Return the parts of weights that `rows` needs."""
        return [Part(self.layer, name, 0, start, stop) for name in self.layer._parameters if self._has(name)]

    def column_parts(self, start: int, stop: int) -> list[Part]:
        """Return the parts of weights that `columns` needs."""
        return [Part(self.layer, "weight", 1, start, stop)]

    def rows(self, start: int, stop: int, brought: Brought) -> RowSlice:
        """Return what computes outputs `start` to `stop`."""
        own = {part.name: self._read(part, brought) for part in self.row_parts(start, stop)}
        parts = tuple(replace(part, up=part.up[start:stop]) for part in self.branches)
        extra = self.branch_bias
        return RowSlice(own["weight"], own.get("bias"), parts, None if extra is None else extra[start:stop])

    def columns(self, start: int, stop: int, brought: Brought) -> ColumnSlice:
        """Return what takes inputs `start` to `stop` to all outputs; the bias is left out."""
        (part,) = self.column_parts(start, stop)
        branches = tuple(replace(part, down=part.down[:, start:stop]) for part in self.branches)
        return ColumnSlice(self._read(part, brought), branches)

    @property
    def bias(self) -> Tensor | None:
        """The whole bias, with that of the branches."""
        own: Tensor | None = self.layer.bias
        extra = self.branch_bias
        if own is None or extra is None:
            return own if extra is None else extra
        return own + extra.to(own.dtype)

    @property
    def branches(self) -> tuple[Branches, ...]:
        state = stored_state(self.layer)
        return (_parts(state.branches) or ()) if state is not None else ()

    @property
    def branch_bias(self) -> Tensor | None:
        state = stored_state(self.layer)
        return state.branches.bias if state is not None and isinstance(state.branches, AllBranches) else None

    def _has(self, name: str) -> bool:
        return self.layer._parameters[name] is not None

    def _read(self, part: Part, brought: Brought) -> Tensor:
        whole = self._kept() if part.name == "weight" else None
        return read_part(part, brought.get(part)) if whole is None else part.of(whole)

    def _kept(self) -> Tensor | None:
        state = stored_state(self.layer)
        if state is None or "weight" not in state.formats or not state.changes or not self.keep:
            return None
        if self._whole is None:
            self._whole = read_weight(self.layer, "weight")
        return self._whole


@dataclass(frozen=True)
class RowSlice:
    """Some outputs of a layer: weight [outputs, in], bias [outputs], branches and their bias cut alike."""

    weight: Tensor
    bias: Tensor | None
    branches: tuple[Branches, ...]
    branch_bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] to [tokens, outputs]."""
        output = F.linear(x, self.weight, self.bias)
        for part in self.branches:
            output = part.add_to_linear(x, output)
        return output if self.branch_bias is None else output + self.branch_bias.to(output.dtype)


@dataclass(frozen=True)
class ColumnSlice:
    """Some inputs of a layer: weight [out, inputs] and branches cut alike."""

    weight: Tensor
    branches: tuple[Branches, ...]

    def dtype(self) -> torch.dtype:
        """Return the dtype of the products: that of autocast if it is on."""
        device = self.weight.device.type
        is_on = device != "meta" and torch.is_autocast_enabled(device)
        return torch.get_autocast_dtype(device) if is_on else self.weight.dtype

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, inputs] to a share [tokens, out] of the layer's output."""
        output = F.linear(hidden, self.weight)
        for part in self.branches:
            output = part.add_to_linear(hidden, output)
        return output


def _parts(branches: SideBranches | None) -> tuple[Branches, ...] | None:
    """The pairs of factors, or None for a branch that cannot be cut."""
    if branches is None:
        return ()
    return tuple(branches.parts) if isinstance(branches, AllBranches) else None
