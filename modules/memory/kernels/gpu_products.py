"""The operations around products in 8 bits on GPUs: rounding an input, and an int8 product with scaled sums.

Both are kernels in Triton; without it PyTorch's operations compute the same in more passes. The tiles of the product
are chosen by timing them once on the GPU, for few and for many rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from modules.memory.kernels.operation import Backend, Operation, triton_problem
from modules.system.devices import capability_of, synchronize

log = logging.getLogger(__name__)

Tiles = tuple[int, int, int, int, int]
TILES: Sequence[Tiles] = ((128, 128, 64, 4, 4), (64, 128, 128, 4, 4), (128, 128, 128, 8, 4), (256, 128, 128, 8, 3))
"""Rows, columns and depth of a tile, warps, and loads under way; the first runs on every GPU that Triton supports."""
TIMED = (3072, 3072)
"""Outputs and inputs of the layer that is timed."""
FEW, MANY = 1024, 4096
"""Rows that are timed."""
ROUNDS = 5


class RowRounder:
    """Rounds the rows of an input to 8 bits in one pass."""

    def __init__(self, device: torch.device) -> None:
        from modules.memory.kernels import triton_product

        self._kernels = triton_product
        codes = torch.empty(1, 16, dtype=torch.int8, device=device)
        triton_product.round_rows(
            torch.ones(1, 16, device=device), codes, torch.empty(1, 1, device=device), 127.0, 1e-12
        )
        if not bool((codes == 127).all()):
            raise ArithmeticError("rounding is wrong")

    def round(self, rows: Tensor, data: Tensor, factors: Tensor, largest: float, smallest: float) -> bool:
        """Round `rows` [M, K]; see `triton_product.round_rows`. False: they do not fit, and PyTorch has to."""
        if rows.stride(1) != 1 or rows.shape[1] > self._kernels.MAX_COLUMNS or not rows.numel():
            return False
        self._kernels.round_rows(rows, data, factors, largest, smallest)
        return True


class ScaledProduct:
    """Multiplies int8 matrices and scales the sums in the same kernel."""

    def __init__(self, device: torch.device) -> None:
        from modules.memory.kernels import triton_product

        self._kernels, self._device = triton_product, device
        self._tiles = cache(self._fastest)
        if self._tiles(FEW) is None:
            raise ArithmeticError("no tiles of the product run")

    def multiply(
        self, left: Tensor, weight: Tensor, factors: Tensor | None, scale: Tensor, bias: Tensor | None, out: Tensor
    ) -> bool:
        """Write the product; see `triton_product.int8_product`. False: it does not fit, and PyTorch has to."""
        if not (left.is_contiguous() and weight.is_contiguous() and out.stride(1) == 1 and scale.is_contiguous()):
            return False
        if (tiles := self._tiles(FEW if len(left) < 2 * FEW else MANY)) is None:
            return False
        self._kernels.int8_product(left, weight, factors, scale, bias, out, tiles)
        return True

    def _fastest(self, rows: int) -> Tiles | None:
        """Time the tiles for so many rows; None: none of them runs on this GPU."""
        outputs, inputs = TIMED
        left = torch.ones(rows, inputs, dtype=torch.int8, device=self._device)
        weight = torch.ones(outputs, inputs, dtype=torch.int8, device=self._device)
        factors, scale = torch.ones(rows, 1, device=self._device), torch.ones(outputs, device=self._device)
        out = torch.empty(rows, outputs, dtype=torch.bfloat16, device=self._device)
        seconds = dict[Tiles, float]()
        for tiles in TILES:
            try:
                self._kernels.int8_product(left, weight, factors, scale, None, out, tiles)
            except Exception as error:  # Triton raises its own where a tile needs more shared memory than there is
                log.debug("Tiles of %s do not run on %s: %s", tiles, self._device, error)
                if tiles == TILES[-1] and not seconds:
                    raise
                continue
            seconds[tiles] = min(self._seconds(left, weight, factors, scale, out, tiles) for _ in range(ROUNDS))
        return min(seconds, key=seconds.__getitem__)

    def _seconds(
        self, left: Tensor, weight: Tensor, factors: Tensor, scale: Tensor, out: Tensor, tiles: Tiles
    ) -> float:
        synchronize(self._device)
        began = time.perf_counter()
        self._kernels.int8_product(left, weight, factors, scale, None, out, tiles)
        synchronize(self._device)
        return time.perf_counter() - began


def product_problem(device: torch.device) -> str | None:
    """Say why the product cannot run; Triton has no int8 product for GPUs before compute capability 8.0."""
    if (problem := triton_problem(device)) is not None:
        return problem
    if torch.version.hip is None and (capability_of(device) or (0, 0)) < (8, 0):
        return "Triton multiplies int8 matrices from compute capability 8.0 on"
    return None


ROUNDING: Operation[Any] = Operation("rounding inputs to 8 bits", (Backend("Triton", triton_problem, RowRounder),))
INT8_PRODUCT: Operation[Any] = Operation("int8 products", (Backend("Triton", product_problem, ScaledProduct),))
