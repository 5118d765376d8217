"""Gradients through layers whose weights are stored, without keeping a decoded weight for the backward pass.

PyTorch's own linear and convolution save the weight that they were given: a copy of the whole model in the compute
dtype would accumulate until the backward pass, and recomputing blocks would not help against it. Here nothing is saved
but the layer, and the weight is decoded again. Stored weights get no gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

ReadWeight = Callable[[nn.Module], Tensor]


def frozen_linear(layer: nn.Linear, x: Tensor, read: ReadWeight) -> Tensor:
    """x [..., in] times the weight that `read` gives, now and again in the backward pass, plus the layer's bias."""
    output: Tensor = _Linear.apply(x, layer, read)  # type: ignore[no-untyped-call]
    return output if layer.bias is None else output + layer.bias.to(output.dtype)


def frozen_convolution(layer: Any, x: Tensor, read: ReadWeight) -> Tensor:
    """The layer's convolution of x [batch, channels, ...], likewise. Only for padding with zeros, given in numbers."""
    output: Tensor = _Convolution.apply(x, layer, read)  # type: ignore[no-untyped-call]
    if layer.bias is None:
        return output
    bias: Tensor = layer.bias.to(output.dtype).view(-1, *(1,) * len(layer.kernel_size))
    return output + bias


def has_plain_padding(layer: Any) -> bool:
    """Whether `frozen_convolution` can compute this convolution."""
    return bool(layer.padding_mode == "zeros" and not isinstance(layer.padding, str))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Linear, read: ReadWeight) -> Tensor:
        ctx.layer, ctx.read = layer, read
        return F.linear(x, read(layer))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient @ ctx.read(ctx.layer).to(gradient.dtype), None, None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Any, read: ReadWeight) -> Tensor:
        ctx.layer, ctx.read, ctx.shape = layer, read, x.shape
        output: Tensor = layer._conv_forward(x, read(layer), None)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        layer = ctx.layer
        dimensions = len(layer.kernel_size)
        shape_only = gradient.new_empty(1).expand(ctx.shape)  # of the input: its values are not used
        result = torch.ops.aten.convolution_backward(
            gradient,
            shape_only,
            ctx.read(layer).to(gradient.dtype),
            None,
            layer.stride,
            layer.padding,
            layer.dilation,
            False,
            [0] * dimensions,
            layer.groups,
            (True, False, False),
        )
        return result[0], None, None
