"""The feed-forward itself, in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from modules.memory.feed_forward.options import CallSize, Pieces, SplitOptions, hidden_slices, pieces_for
from modules.memory.feed_forward.pattern import FeedForward, piece_bytes
from modules.memory.feed_forward.weights import (
    ColumnSlice,
    LayerReader,
    RowSlice,
    cast_input,
    has_gradients,
    has_hooks,
    is_readable,
    must_be_decoded,
)
from modules.memory.layer import fetch_parts


@dataclass(frozen=True)
class Resolved:
    """The layers of a feed-forward as they are at this moment."""

    pattern: FeedForward
    module: nn.Module
    activated: nn.Module
    factor: nn.Module | None
    down: Any

    @classmethod
    def of(cls, pattern: FeedForward, module: nn.Module) -> Resolved | None:
        """None if a part is not what it was: replaced by another class, or with somebody's hooks on it."""
        try:
            parts = [module.get_submodule(path) for path in pattern.bypassed]
        except AttributeError:
            return None
        activated = module.get_submodule(pattern.activated.path)
        factor = None if pattern.factor is None else module.get_submodule(pattern.factor.path)
        down: Any = module.get_submodule(pattern.down)
        layers = [layer for layer in (activated, factor, down) if layer is not None]
        if any(has_hooks(part) for part in parts) or not all(is_readable(layer) for layer in layers):
            return None
        return cls(pattern, module, activated, factor, down) if down.in_features == pattern.hidden else None

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """Return the layers with weights."""
        return tuple(layer for layer in (self.activated, self.factor, self.down) if layer is not None)

    @property
    def is_dropping(self) -> bool:
        """Whether random numbers are drawn."""
        drops = [self.module.get_submodule(path) for path in self.pattern.dropouts]
        return any(drop.training and getattr(drop, "p", 0.0) > 0 for drop in drops)

    def size(self, x: Tensor) -> CallSize:
        """Return what a call with `x` [..., in] takes."""
        itemsize = x.element_size()
        down: Any = self.down
        width = x.shape[-1]
        decoded = [layer for layer in self.layers if must_be_decoded(layer)]
        ups = 1 if self.pattern.factor is None else 2
        columns = (down.out_features if down in decoded else 0) + (ups * width if self.activated in decoded else 0)
        alive = whole = ups  # activation and product work in place
        extra = 0 if self.pattern.in_place else self.pattern.buffers - 1
        if torch.is_grad_enabled():
            alive, whole, extra = self.pattern.buffers, self.pattern.buffers + self.pattern.is_fused, 0
        return CallSize(
            tokens=x.numel() // max(1, width),
            hidden=self.pattern.hidden,
            bytes_per_activation=alive * itemsize,
            whole_bytes=whole * itemsize,
            weight_bytes=columns * self.pattern.hidden * itemsize,
            extra_bytes=extra * itemsize,
            max_extra_bytes=extra * piece_bytes(x.device),
        )


def compute(pattern: FeedForward, options: SplitOptions, module: nn.Module, x: Tensor) -> Tensor | None:
    """The feed-forward of `x` [..., in] in pieces, [..., out]; None where it is better computed whole."""
    parts = Resolved.of(pattern, module)
    if parts is None:
        return None
    x = cast_input(parts.activated, x)
    size = parts.size(x)
    pieces = pieces_for(options, size, x.device)
    if pieces.splits == 1 and pieces.chunk >= size.tokens:
        return None
    flat = x.reshape(-1, x.shape[-1])
    is_training = torch.is_grad_enabled() and (x.requires_grad or any(has_gradients(layer) for layer in parts.layers))
    if is_training:
        output = _with_gradients(parts, flat, pieces, options.fp32_accumulation)
    else:
        output = _without_gradients(parts, flat, pieces, options.fp32_accumulation, options.few_pieces)
    return pattern.finish(module, output.view(*x.shape[:-1], output.shape[-1]))


@dataclass(frozen=True)
class _Slice:
    """Some units of the hidden dimension, with the weights that they need."""

    parts: Resolved
    activated: RowSlice  # all rows, also the factor's, where the hidden dimension is whole: the module's own product
    factor: RowSlice | None
    down: ColumnSlice

    def hidden(self, x: Tensor) -> Tensor:
        """Tokens [tokens, in] to hidden activations [tokens, units], in the dtype of the second projection."""
        pattern = self.parts.pattern
        if self.factor is not None:
            hidden = pattern.activate(self.parts.module, self.activated(x), partial(self.factor, x))
        elif pattern.factor is not None:
            both = self.activated(x)
            sides = (both[:, rows.first :][:, : pattern.hidden] for rows in (pattern.activated, pattern.factor))
            hidden = pattern.activate(self.parts.module, *sides)
        else:
            hidden = pattern.activate(self.parts.module, self.activated(x), None)
        return hidden.to(self.down.dtype())


class _Readers:
    """The layers of one call, read slice by slice."""

    def __init__(self, parts: Resolved, keep: bool) -> None:
        self.parts = parts
        self.activated = LayerReader(parts.activated, keep)
        self.factor = None if parts.factor is None else LayerReader(parts.factor, keep)
        if parts.factor is parts.activated:
            self.factor = self.activated
        self.down = LayerReader(parts.down, keep)

    def slice(self, start: int, stop: int) -> _Slice:
        """Weights that are offloaded are brought for this slice only, all at once."""
        pattern = self.parts.pattern
        reads = [(self.activated, pattern.activated.first + start, pattern.activated.first + stop)]
        if pattern.is_fused and stop - start == pattern.hidden:
            reads = [(self.activated, 0, 2 * stop)]
        elif self.factor is not None and pattern.factor is not None:
            reads.append((self.factor, pattern.factor.first + start, pattern.factor.first + stop))
        wanted = [part for reader, begin, end in reads for part in reader.row_parts(begin, end)]
        brought = fetch_parts(wanted + self.down.column_parts(start, stop))
        activated, *factor = [reader.rows(begin, end, brought) for reader, begin, end in reads]
        return _Slice(self.parts, activated, factor[0] if factor else None, self.down.columns(start, stop, brought))


FEW = 2  # pieces that tell what all take: the second is computed while the sum of the first is there


def _without_gradients(
    parts: Resolved, x: Tensor, pieces: Pieces, fp32_accumulation: bool, few_pieces: bool = False
) -> Tensor:
    """Slices of the hidden dimension outside, tokens inside: each weight is read once. Sums are made in place."""
    readers = _Readers(parts, keep=True)
    bias = readers.down.bias
    slices = hidden_slices(parts.pattern.hidden, pieces.splits)
    starts = range(0, x.shape[0], pieces.chunk)
    if few_pieces:
        slices = sorted(slices, key=lambda part: part[0] - part[1])[:FEW]
        starts = starts[:FEW]
    output = torch.empty(0)
    ranks: list[Tensor] = []
    for index, (start, stop) in enumerate(slices):
        part = readers.slice(start, stop)
        dtype = part.down.dtype()
        weight = part.down.weight.to(dtype)
        if index == 0:
            sum_dtype = torch.float32 if fp32_accumulation and len(slices) > 1 else dtype
            output = x.new_empty(x.shape[0], weight.shape[0], dtype=sum_dtype)
            bias = None if bias is None else bias.to(dtype)
            ranks = [x.new_zeros(x.shape[0], branch.down.shape[0], dtype=dtype) for branch in readers.down.branches]
        for begin in starts:
            tokens = slice(begin, begin + pieces.chunk)
            hidden = part.hidden(x[tokens])
            _add_product(output[tokens], hidden, weight, bias, is_first=index == 0)
            for rank, branch in zip(ranks, part.down.branches, strict=True):
                rank[tokens] += F.linear(hidden, branch.down.to(dtype))
            del hidden
        if index == len(slices) - 1:
            for rank, branch in zip(ranks, readers.down.branches, strict=True):
                _add_product(output, rank * branch.scale.to(dtype), branch.up.to(dtype), None, is_first=False)
            output = output.to(dtype)
        del part, weight  # before the next ones are brought
    return output


def _add_product(output: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, is_first: bool) -> None:
    """output (+)= hidden weight^T (+ bias, the first time), in place."""
    if output.dtype == hidden.dtype:
        if is_first and bias is not None:
            torch.addmm(bias, hidden, weight.t(), out=output)
        elif is_first:
            torch.mm(hidden, weight.t(), out=output)
        else:
            output.addmm_(hidden, weight.t())
        return
    product = _wide_product(hidden, weight)
    if is_first:
        output.copy_(product)
        if bias is not None:
            output.add_(bias)
    else:
        output.add_(product)


def _wide_product(hidden: Tensor, weight: Tensor) -> Tensor:
    """The product for a float32 sum: unrounded where the device can (CUDA), else in the layer's dtype."""
    if hidden.device.type == "cuda":
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return torch.mm(hidden, weight.t())


def _with_gradients(parts: Resolved, x: Tensor, pieces: Pieces, fp32_accumulation: bool) -> Tensor:
    """Compute the same for training: nothing of a piece is kept for the backward pass, which computes it again."""
    slices = hidden_slices(parts.pattern.hidden, pieces.splits)

    def share(tokens: Tensor, start: int, stop: int) -> Tensor:
        part = _Readers(parts, keep=False).slice(start, stop)
        return part.down(part.hidden(tokens))

    outputs = []
    for tokens in torch.split(x, pieces.chunk):
        total: Any = None
        for start, stop in slices:
            product: Any = checkpoint(
                share, tokens, start, stop, use_reentrant=False, preserve_rng_state=parts.is_dropping
            )
            dtype = product.dtype
            product = product.float() if fp32_accumulation and len(slices) > 1 else product
            total = product if total is None else total + product
        bias = LayerReader(parts.down, keep=False).bias
        outputs.append((total if bias is None else total + bias.to(total.dtype)).to(dtype))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
