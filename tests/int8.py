"""An int8 product that is exact and takes milliseconds on every CPU.

`torch._int_mm` is a plain loop where the CPU has no instructions for it, and wrong where oneDNN is held to older ones
(`ONEDNN_MAX_CPU_ISA`); the program finds that out by itself (`tests/memory/test_int8_support.py`).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


def exact_product(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Multiply as `torch._int_mm`: int8 [M,K] by [K,N] is int32 [M,N]. Float64 holds these sums without rounding."""
    sums = (left.double() @ right.double()).to(torch.int32)
    return sums if out is None else out.copy_(sums)


@pytest.fixture(autouse=True)
def small_exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of toys multiply in int8 too; import it where they do."""
    monkeypatch.setattr("modules.memory.int8_matmul.MIN_PRODUCTS", 0)
    monkeypatch.setattr(torch, "_int_mm", exact_product)
