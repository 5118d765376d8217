"""Whether inputs of int8 products are rounded, and their sums scaled, by the compiled kernels of
`modules.memory.kernels.int8_product`.

They need llvmlite, which numba brings, and what they compute is what PyTorch computes. Their start takes 0.03 s and 45
MB, of which 40 are pages of the library's file; so a process starts them only when it has computed so much with PyTorch
that it would have paid: in the first step of a model of full size. From then on they take every layer
that multiplies in int8, as they pay for the smallest: 8 rows of 32 inputs take 7 microseconds instead of 25.
"""

from __future__ import annotations

import threading
from typing import Protocol

import torch
from torch import Tensor

from modules.memory.kernels.operation import Backend, Operation
from modules.memory.kernels.row_support import Count, llvm_problem

DTYPES = (torch.float32, torch.bfloat16)
"""Of inputs and outputs."""
PAYS_FROM = 1 << 27
"""Inputs and sums that a process has PyTorch round and scale first. The kernels would have saved 0.3 ns for each input
and 0.13 for each sum in float32, twice that in bfloat16: about what their start takes."""


class ProductKernels(Protocol):
    """See `modules.memory.kernels.int8_product`."""

    def round_rows(self, rows: Tensor, data: Tensor, factors: Tensor) -> bool: ...
    def peak_of(self, rows: Tensor) -> float: ...
    def round_by(self, rows: Tensor, factor: float, data: Tensor) -> None: ...
    def scale_sums(
        self, sums: Tensor, factors: Tensor | None, scale: Tensor, bias: Tensor | None, out: Tensor
    ) -> None: ...


_COUNT = Count()
_STARTING = threading.Lock()


def product_kernels(device: torch.device, dtype: torch.dtype, numbers: int) -> ProductKernels | None:
    """Return what rounds, or scales, so many values from or to `dtype`; None if PyTorch should. Nothing is imported
    before `PAYS_FROM` values have been asked for."""
    if device.type != "cpu" or dtype not in DTYPES or _COUNT.add(numbers) < PAYS_FROM:
        return None
    with _STARTING:  # LLVM is started once
        return PRODUCTS.on(device)


def _load(_: torch.device) -> ProductKernels:
    from modules.memory.kernels import int8_product

    int8_product.compile_all()
    return int8_product


PRODUCTS: Operation[ProductKernels] = Operation(
    "rounding and scaling around int8 products", (Backend("LLVM", llvm_problem, _load),)
)
