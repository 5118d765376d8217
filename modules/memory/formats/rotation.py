"""The rotation that spreads outliers over a group of a weight's inputs, so that one scale per row serves all of them.

A regular Hadamard matrix of the order 4^n is the Kronecker power of the one of order 4, whose rows all have three ones
and one minus one; divided by the root of its order it is symmetric and its own inverse, so the same function rotates
and rotates back. Unlike Sylvester's it has no row of ones only, which would gather a group's mean in one column. Groups
of 256 along the input and this order of rows are what files in ComfyUI's layout hold (`convrot`). Source: ConvRot,
Huang et al. 2025 (arXiv:2512.03673).
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from modules.memory.formats.catalog import ROTATION_GROUP

GROUP = ROTATION_GROUP
FACTOR = 16
"""The matrix of order 256 is the Kronecker product of this order's with itself: two products with small matrices cost
a third of one with the large one."""
ORDER_4 = ((1.0, 1.0, 1.0, -1.0), (1.0, 1.0, -1.0, 1.0), (1.0, -1.0, 1.0, 1.0), (-1.0, 1.0, 1.0, 1.0))


def can_rotate(width: int, group: int = GROUP) -> bool:
    """Whether rows of this many elements are whole groups."""
    return width > 0 and width % group == 0


def hadamard(order: int, device: torch.device | None = None) -> Tensor:
    """The normalized regular Hadamard matrix [order, order], float32. Raises `ValueError` for an order that is no power
    of 4."""
    if order < 4 or order & (order - 1) or order.bit_length() % 2 == 0:
        raise ValueError(f"a regular Hadamard matrix of this construction has an order of 4, 16, 64 ..., not {order}")
    return _hadamard(order, device or torch.device("cpu"))


def rotate(x: Tensor, group: int = GROUP) -> Tensor:
    """`x` [..., n] with each group along its last dimension times the matrix, in x's dtype; twice gives `x` back up to
    rounding. n is a multiple of `group`."""
    turned: Tensor
    if group == FACTOR * FACTOR and x.numel():
        small = hadamard(FACTOR, x.device).to(x.dtype)
        rows = x.reshape(-1, FACTOR) @ small
        turned = small @ rows.view(-1, FACTOR, FACTOR)
    else:
        turned = x.reshape(-1, group) @ hadamard(group, x.device).to(x.dtype)
    return turned.view(x.shape)


@cache
def _hadamard(order: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # it outlives the mode it is first asked for in
        base = matrix = torch.tensor(ORDER_4)
        while len(matrix) < order:
            matrix = torch.kron(matrix, base)
        normalized: Tensor = (matrix / order**0.5).to(device)
        return normalized
