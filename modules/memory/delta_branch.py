"""Changes that do not factor, as side branches of a layer that computes in bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.memory.changes import Budget, LayerChange, changed_bias, changed_weight, convolved, with_geometry
from modules.memory.layer import read_weight


def wants_delta_branch(layer: nn.Module, compute_dtype: torch.dtype) -> bool:
    """Whether a change on this layer's weight must be a side branch: added to the weight, most of it would be lost.

    A weight decoded from 8 bits lies on points far apart, of which bfloat16 knows only some between: a change of 0.1 %
    is rounded back to where the weight was, in half of the places. A product's sum lies anywhere, so that its rounding
    loses nothing on the whole.
    """
    plain = isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)
    return plain and compute_dtype == torch.bfloat16


@dataclass
class DeltaBranch:
    """A second product, with what the changes add to the weight (a `SideBranches` of `modules.memory.layer`).

    What they add is kept in the compute dtype where the budget grants it, else made again at each use.
    """

    changes: Sequence[LayerChange]
    budget: Budget
    _kept: Tensor | None = field(default=None)

    def delta(self, weight: Tensor) -> Tensor:
        """Return what is added to this weight, in its dtype and on its device."""
        if self._kept is not None and (self._kept.dtype, self._kept.device) == (weight.dtype, weight.device):
            return self._kept
        base = weight.float()
        delta = (changed_weight(base, self.changes) - base).to(weight.dtype)
        if self._kept is None and self.budget.take(delta.nbytes):
            self._kept = delta
        return delta

    def bias_delta(self, layer: nn.Module, like: Tensor) -> Tensor | None:
        """Return what is added to the layer's bias; None if nothing is."""
        bias: Any = None if layer._parameters.get("bias") is None else layer.bias
        own: Tensor | None = None if bias is None else bias.float()
        changed = changed_bias(own, self.changes)
        if changed is None or own is None:
            return None if changed is None else changed.to(like)
        return (changed - own).to(like)

    def merging(self, layer: nn.Module, inputs: Tensor, shape: Sequence[int], has_product: bool) -> None:
        """See `SideBranches`; never, as that is what must not be done."""

    def tensors(self) -> None:
        """See `SideBranches`; what the changes add may be made again at each use."""

    def linear(self, layer: nn.Module, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See `SideBranches`. The small product first, the layer's added to it: the large number is rounded once."""
        if inputs.dtype != weight.dtype or torch.is_autocast_enabled(inputs.device.type):
            return self.add_to_output(layer, inputs, F.linear(inputs, weight, bias))
        extra = self.bias_delta(layer, weight)
        if bias is not None:
            extra = bias if extra is None else bias + extra
        rows = inputs.reshape(-1, inputs.shape[-1])
        small = F.linear(rows, self.delta(weight), extra)
        return torch.addmm(small, rows, weight.t()).view(*inputs.shape[:-1], len(weight))

    def convolution(self, layer: nn.Module, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See `SideBranches`. The inputs twice, with the weight and with what is added to it, are one sum."""
        if inputs.dtype != weight.dtype or torch.is_autocast_enabled(inputs.device.type):
            return self.add_to_output(layer, inputs, convolved(layer, inputs, weight, bias))
        extra = self.bias_delta(layer, weight)
        if bias is not None:
            extra = bias if extra is None else bias + extra
        return convolved(layer, torch.cat([inputs, inputs], 1), torch.cat([weight, self.delta(weight)], 1), extra)

    def add_to_output(self, layer: nn.Module, inputs: Tensor, output: Tensor) -> Tensor:
        """See `SideBranches`."""
        delta = self.delta(read_weight(layer, "weight"))
        extra = self.bias_delta(layer, delta)
        if isinstance(layer, nn.Linear):
            return output + F.linear(inputs, delta, extra).to(output.dtype)
        product = with_geometry(layer, inputs, delta).to(output.dtype)
        return output + product if extra is None else output + product + extra.reshape(-1, 1, 1).to(output.dtype)
