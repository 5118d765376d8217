"""Changes of a stored layer's weights when they are used: deltas on the weights, side branches of the layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.memory.layer import Delta
from modules.memory.scratch import scratch

MERGING_COSTS = 2.0  # a multiplication into a weight, which then leaves the cache, over one elsewhere
MAX_COLUMNS_BYTES = 8 << 20
"""Of one image's gathered neighbours, as columns of a matrix: larger ones take longer than a second kernel."""
DECODED_COSTS = {torch.float32: 0.65, torch.bfloat16: 0.25}
"""What a multiplication with a decoded weight costs more than one in int8, over one in a side branch, by compute dtype
(0.47 of float32's time in bfloat16, 0.25 to 0.45 in int8: `benchmarks.lora five` in both)."""


@dataclass(frozen=True)
class SideBranch:
    """A change that factors: y += scale * up(mid(down(x))), all float32.

    For a Linear `down` is [rank, in] and `up` [out, rank]. For a convolution `down` is [rank, in, *kernel] and `up`
    [out, rank, 1, 1]; with `mid` [rank, rank, *kernel] the kernel is there and `down` is [rank, in, 1, 1].
    """

    down: Tensor
    up: Tensor
    mid: Tensor | None
    scale: float


class LayerChange(Protocol):
    """The effect of one adapter on one layer, at one strength."""

    def branch(self) -> SideBranch | None:
        """The change as a branch, or None for algorithms that do not factor."""

    def weight_delta(self, weight: Tensor) -> Tensor | None:
        """Return what is added to `weight` (float32), in its shape; None if the weight stays."""

    def bias_delta(self, bias: Tensor | None) -> Tensor | None:
        """Return what is added to the bias; None if it stays."""

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """The dtype in which others add this change to a weight; None: float32."""


def changed_weight(
    weight: Tensor, changes: Sequence[LayerChange], as_others: bool = False, sum_dtype: torch.dtype | None = None
) -> Tensor:
    """A float32 weight with all changes, one after the other: a later one sees what the earlier ones made.

    `as_others` rounds each sum to `sum_dtype`, or else the change's own, for images equal to other programs'.
    """
    for change in changes:
        delta = change.weight_delta(weight)
        if delta is None:
            continue
        delta = delta.reshape(weight.shape)
        rounded = (sum_dtype or change.sum_dtype) if as_others else None
        weight = (weight.to(rounded) + delta.to(rounded)).float() if rounded is not None else weight + delta
    return weight


def changed_bias(bias: Tensor | None, changes: Sequence[LayerChange]) -> Tensor | None:
    """A float32 bias with all changes; a layer without one gets one if a change brings it."""
    for change in changes:
        delta = change.bias_delta(bias)
        if delta is not None:
            bias = delta if bias is None else bias + delta.reshape(bias.shape)
    return bias


@dataclass
class Budget:
    """Bytes that deltas may take in memory; the rest is computed again whenever a layer is used."""

    free_bytes: int

    def take(self, count: int) -> bool:
        """Whether `count` bytes are granted."""
        if count > self.free_bytes:
            return False
        self.free_bytes -= count
        return True


@dataclass
class DecodedChanges:
    """Changes added to a weight when it is decoded (a `WeightChange` of `modules.memory.layer`).

    The sum is made in float32 and rounded once, to the compute dtype. What the budget grants is kept between uses.
    """

    changes: Sequence[LayerChange]
    budget: Budget
    _kept: dict[str, Tensor] = field(default_factory=dict)

    def add_to(self, name: str, weight: Tensor) -> Tensor:
        """See `WeightChange`."""
        if name not in ("weight", "bias"):
            return weight
        kept = self._kept.get(name)
        if kept is None:
            base = weight.float()
            whole = changed_weight(base, self.changes) if name == "weight" else changed_bias(base, self.changes)
            assert whole is not None
            kept = whole - base
            if self.budget.take(kept.numel() * kept.element_size()):
                self._kept[name] = kept
        return (weight.float() + kept).to(weight.dtype)


@dataclass
class Branches:
    """Side branches of one layer, joined to a single pair of factors. `scale` [rank] is replaced to change
    strengths."""

    down: Tensor
    up: Tensor
    scale: Tensor
    mid: Tensor | None = None

    def add_to_output(self, layer: nn.Module, inputs: Tensor, output: Tensor) -> Tensor:
        """See `SideBranches`."""
        if isinstance(layer, nn.Linear):
            return self.add_to_linear(inputs, output)
        down, up, scale = self.down.to(inputs.dtype), self.up.to(inputs.dtype), self.scale.reshape(-1, 1, 1)
        hidden = F.conv2d(inputs, down) if self.mid is not None else with_geometry(layer, inputs, down)
        if self.mid is not None:
            hidden = with_geometry(layer, hidden, self.mid.to(inputs.dtype))
        hidden = (hidden * scale).to(inputs.dtype)
        if not _adds_in_place(output, hidden):
            return output + F.conv2d(hidden, up).to(output.dtype)
        spread = output.flatten(2)  # [B, out, pixels]
        spread.baddbmm_(up.flatten(1).expand(len(spread), -1, -1), hidden.flatten(2))
        return output

    def is_cheaper_merged(self, inputs: Tensor, shape: Sequence[int], has_product: bool) -> bool:
        """Whether adding the product of the factors to a layer's weight of this shape costs less than multiplying its
        inputs with them. `has_product`: the weight is decoded for that only."""
        if self.mid is not None or not inputs.numel():
            return False
        elements = math.prod(shape)
        places = inputs.numel() // inputs.shape[-1 if len(shape) == 2 else 1]
        added = MERGING_COSTS * elements / places
        if has_product:
            added += DECODED_COSTS.get(inputs.dtype, 1.0) * elements / len(self.scale)
        return elements // shape[0] + shape[0] > added

    def delta(self, weight: Tensor) -> Tensor:
        """See `Delta`."""
        up, down = self.up.flatten(1) * self.scale, self.down.flatten(1)
        out = scratch((len(up), down.shape[1]), weight.dtype, "delta")
        return torch.mm(up.to(weight.dtype), down.to(weight.dtype), out=out)

    def add_delta_to(self, weight: Tensor, out: Tensor) -> None:
        """See `Delta`."""
        up, rows = self.up.flatten(1) * self.scale, (len(self.up), -1)
        torch.addmm(weight.view(rows), up, self.down.flatten(1), out=out.view(rows))

    def hidden(self, inputs: Tensor) -> Tensor:
        """A Linear's inputs [..., in] to [tokens, rank], scaled."""
        inputs = inputs.reshape(-1, inputs.shape[-1])
        return (F.linear(inputs, self.down.to(inputs.dtype)) * self.scale).to(inputs.dtype)

    def add_to_linear(self, inputs: Tensor, output: Tensor) -> Tensor:
        """A Linear's output [..., out] for inputs [..., in] with what its branches add.

        Product and sum are one call, so that in 16 bit they are rounded once; in place where autograd does not watch,
        because an output is often larger than the caches.
        """
        hidden, up = self.hidden(inputs), self.up.to(inputs.dtype)
        if output.dtype != hidden.dtype:  # under autocast
            return output + F.linear(hidden, up).to(output.dtype).view(output.shape)
        rows = output.reshape(-1, output.shape[-1])
        if _adds_in_place(output, hidden):
            rows.addmm_(hidden, up.t())
            return output
        return torch.addmm(rows, hidden, up.t()).view(output.shape)


def _adds_in_place(output: Tensor, hidden: Tensor) -> bool:
    """Whether a layer's output, made just now and known to nobody else, may be added to in place."""
    return output.dtype == hidden.dtype and output.is_contiguous() and not torch.is_grad_enabled()


def joined_branches(
    layer: nn.Module, branches: Sequence[SideBranch], dtype: torch.dtype, device: torch.device
) -> list[Branches]:
    """One `Branches` for all that have no middle part, then one for each that has."""
    simple = [branch for branch in branches if branch.mid is None]
    scales = joined_scales(branches, device)
    result = []
    if simple:
        down = torch.cat([_shaped(branch.down, layer) for branch in simple]).to(device, dtype)
        up = torch.cat([_shaped(branch.up, layer, is_up=True) for branch in simple], dim=1).to(device, dtype)
        result.append(Branches(down, up, scales[0]))
    for branch, scale in zip((b for b in branches if b.mid is not None), scales[len(result) :], strict=True):
        assert branch.mid is not None
        up = _shaped(branch.up, layer, is_up=True).to(device, dtype)
        down = branch.down.reshape(*branch.down.shape[:2], 1, 1).to(device, dtype)
        result.append(Branches(down, up, scale, branch.mid.to(device, dtype)))
    return result


def joined_scales(branches: Sequence[SideBranch], device: torch.device) -> list[Tensor]:
    """The `scale` of each of the `Branches` that `joined_branches` makes of these."""
    simple = [torch.full((branch.up.shape[1],), branch.scale) for branch in branches if branch.mid is None]
    own = [torch.full((branch.up.shape[1],), branch.scale) for branch in branches if branch.mid is not None]
    return [scale.to(device) for scale in ([torch.cat(simple)] if simple else []) + own]


@dataclass
class AllBranches:
    """Several `Branches` as one `SideBranches`, and a bias for a layer that has none."""

    parts: Sequence[Branches]
    bias: Tensor | None = None

    def merging(self, layer: nn.Module, inputs: Tensor, shape: Sequence[int], has_product: bool) -> Delta | None:
        """See `SideBranches`. Where one part has a middle, all stay branches."""
        if self.bias is not None or not self.parts:
            return None
        return self if all(part.is_cheaper_merged(inputs, shape, has_product) for part in self.parts) else None

    def delta(self, weight: Tensor) -> Tensor:
        """See `Delta`."""
        first, *others = self.parts
        delta = first.delta(weight)
        return sum((part.delta(weight) for part in others), delta.clone()) if others else delta

    def add_delta_to(self, weight: Tensor, out: Tensor) -> None:
        """See `Delta`."""
        for part in self.parts:
            part.add_delta_to(weight, out)
            weight = out

    def linear(self, layer: nn.Module, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See `SideBranches`. What is small is summed first, and the layer's product added to it: so in 16 bit the
        large number is rounded once, as without branches."""
        if inputs.dtype != weight.dtype or torch.is_autocast_enabled(inputs.device.type) or not self.parts:
            output = F.linear(inputs, weight, bias)
            return self.add_to_output(layer, inputs, output)
        if self.bias is not None:
            bias = self.bias.to(inputs.dtype) if bias is None else bias + self.bias.to(bias.dtype)
        first, *others = self.parts
        small = F.linear(first.hidden(inputs), first.up.to(inputs.dtype), bias)
        rows, factor = inputs.reshape(-1, inputs.shape[-1]), weight.t()
        if torch.is_grad_enabled():
            for part in others:
                small = torch.addmm(small, part.hidden(inputs), part.up.to(inputs.dtype).t())
            return torch.addmm(small, rows, factor).view(*inputs.shape[:-1], len(weight))
        for part in others:
            small.addmm_(part.hidden(inputs), part.up.to(inputs.dtype).t())
        return small.addmm_(rows, factor).view(*inputs.shape[:-1], len(weight))

    def convolution(self, layer: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See `SideBranches`. In bfloat16, whose rounding shows, all is one sum, rounded once: of matrices, with the
        neighbours of each place as a column; where those would take too much memory, the branches' hidden channels
        stand behind the layer's own and their `up` in the middle of its kernel."""
        is_one_sum = all(part.mid is None for part in self.parts) and sums_once(layer, inputs, weight)
        if not self.parts or not is_one_sum:
            return self.add_to_output(layer, inputs, convolved(layer, inputs, weight, bias))
        if self.bias is not None:
            bias = self.bias.to(inputs.dtype) if bias is None else bias + self.bias.to(bias.dtype)
        places = inputs[0, 0].numel() // math.prod(layer.stride)
        if inputs.device.type == "cpu" and places * weight[0].numel() * weight.itemsize <= MAX_COLUMNS_BYTES:
            return self._as_matrices(layer, inputs, weight, bias)
        channels, kernels = [inputs], [weight]
        for part in self.parts:
            hidden = with_geometry(layer, inputs, part.down.to(inputs.dtype)) * part.scale.reshape(-1, 1, 1)
            channels.append(at_centres(layer, hidden.to(inputs.dtype), inputs))
            kernels.append(in_the_middle(part.up.to(inputs.dtype), weight))
        return convolved(layer, torch.cat(channels, 1), torch.cat(kernels, 1), bias)

    def _as_matrices(self, layer: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution [B, out, h', w'] with the branches, image by image: what is small is summed first."""
        height, width = ((side - 1) // step + 1 for side, step in zip(inputs.shape[2:], layer.stride, strict=True))
        flat, images = weight.flatten(1), []
        for image in torch.split(inputs, 1):
            columns = F.unfold(image, layer.kernel_size, padding=layer.padding, stride=layer.stride)[
                0
            ]  # [in k k, h'w']
            small = columns.new_zeros(()) if bias is None else bias.reshape(-1, 1)
            for part in self.parts:
                hidden = (part.down.flatten(1).to(columns.dtype) @ columns) * part.scale.reshape(-1, 1)
                small = torch.addmm(small, part.up.flatten(1).to(columns.dtype), hidden.to(columns.dtype))
            images.append(torch.addmm(small, flat, columns).view(-1, height, width))
        return torch.stack(images)

    def tensors(self) -> list[Tensor]:
        """See `SideBranches`."""
        found = [each for part in self.parts for each in (part.down, part.up, part.scale, part.mid)]
        return [tensor for tensor in (*found, self.bias) if tensor is not None]

    def add_to_output(self, layer: nn.Module, inputs: Tensor, output: Tensor) -> Tensor:
        """See `SideBranches`."""
        for part in self.parts:
            output = part.add_to_output(layer, inputs, output)
        if self.bias is not None:
            bias = self.bias.to(output.dtype)
            output = output + (bias if isinstance(layer, nn.Linear) else bias.reshape(-1, 1, 1))
        return output


def _shaped(factor: Tensor, layer: nn.Module, is_up: bool = False) -> Tensor:
    """A factor in the layer's number of dimensions: files keep 1x1 convolutions as matrices and the reverse."""
    if isinstance(layer, nn.Linear):
        return factor.flatten(1)
    if is_up:
        return factor.reshape(*factor.shape[:2], 1, 1)
    return factor if factor.ndim == 4 else factor.reshape(*factor.shape, 1, 1)


def sums_once(layer: Any, inputs: Tensor, weight: Tensor) -> bool:
    """Whether more channels fit next to a convolution's own, so that all is one sum; in bfloat16, whose
    rounding shows."""
    return (
        isinstance(layer, nn.Conv2d)
        and inputs.dtype == weight.dtype == torch.bfloat16
        and not torch.is_autocast_enabled(inputs.device.type)
        and (layer.groups, layer.padding_mode) == (1, "zeros")
        and all(side % 2 == 1 for side in layer.kernel_size)
        and tuple(layer.dilation) == (1, 1)
        and layer.padding == tuple(side // 2 for side in layer.kernel_size)
    )


def at_centres(layer: Any, hidden: Tensor, inputs: Tensor) -> Tensor:
    """Channels of the output's size, in the input's: where the middle of the kernel is for each output."""
    rows, columns = layer.stride
    if (rows, columns) == (1, 1):
        return hidden
    spread = hidden.new_zeros(*hidden.shape[:2], *inputs.shape[2:])
    spread[:, :, ::rows, ::columns] = hidden
    return spread


def in_the_middle(up: Tensor, weight: Tensor) -> Tensor:
    """[out, rank, 1, 1] as a kernel of the weight's size."""
    rows, columns = weight.shape[2:]
    return F.pad(up.reshape(*up.shape[:2], 1, 1), (columns // 2, columns // 2, rows // 2, rows // 2))


def convolved(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The layer's own convolution with this weight."""
    result: Tensor = layer._conv_forward(x, weight, bias)
    return result


def with_geometry(layer: Any, x: Tensor, kernel: Tensor) -> Tensor:
    """A convolution with the layer's own stride, padding and dilation."""
    padding = layer.padding
    if layer.padding_mode != "zeros":
        x = F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = 0
    return F.conv2d(x, kernel, None, layer.stride, padding, layer.dilation)
