"""Linear layers that multiply in 8 bits: weights stay as they are stored, inputs are rounded for the product.

The product is `torch._scaled_mm` with unit scales; the scales (one per row of the input, one per row of the weight) are
applied to its sums. That takes the same kernels everywhere, and no row of the input pays for another's outliers. Both
factors carry the 2.6 % of e4m3, so a product is off by 3.7 % where a decoded weight's is by 2.6.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from modules.memory.kernels.gpu_products import ROUNDING
from modules.memory.layer import Stored, stored_state, stored_tensors

LARGEST = torch.finfo(torch.float8_e4m3fn).max
MULTIPLE = 16  # the kernels' condition on both sides of the weight
SMALLEST_ROW = 1e-12


def multiply_in_8_bits(layer: nn.Module) -> bool:
    """Have a managed linear layer multiply in 8 bits where it can; False for one whose weights do not allow it."""
    state = stored_state(layer)
    if state is None or not isinstance(layer, nn.Linear) or "weight" not in state.formats:
        return False
    weight = layer._parameters["weight"]
    if weight is None or weight.dtype != torch.float8_e4m3fn or any(side % MULTIPLE for side in weight.shape):
        return False
    state.product = fp8_product
    return True


def fp8_product(layer: nn.Module, state: Stored, x: Tensor, bias: Tensor | None) -> Tensor | None:
    """`x` [..., in] times the layer's weight plus its bias, [..., out] in the compute dtype.

    None where the weight must be decoded: while something is trained, and where an adapter changes the weight itself.
    """
    if state.changes or torch.is_grad_enabled() or x.numel() == 0:
        return None
    data, scale = state.fetch(layer, "weight") if state.fetch is not None else stored_tensors(layer, "weight")
    if data.dtype != torch.float8_e4m3fn:  # the layer was moved to another dtype
        return None
    device = state.device or data.device
    data = data.to(device, non_blocking=True)
    rounded, row_scale = rounded_rows(x.reshape(-1, x.shape[-1]))
    sums = scaled_product(rounded, data, state.compute_dtype)
    sums *= row_scale
    if scale is not None:
        sums *= scale.to(device, torch.float32).reshape(1, -1)
    product = sums.to(state.compute_dtype).reshape(*x.shape[:-1], data.shape[0])
    return product if bias is None else product + bias


def rounded_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return `rows` [M, K] as e4m3, and float32 [M, 1] that multiply them back."""
    rounding = ROUNDING.on(rows.device)
    if rounding is not None:
        data = torch.empty(rows.shape, dtype=torch.float8_e4m3fn, device=rows.device)
        factors = torch.empty(len(rows), 1, device=rows.device)
        if rounding.round(rows, data, factors, LARGEST, SMALLEST_ROW):
            return data, factors
    wide = rows.float()
    row_scale = wide.abs().amax(dim=1, keepdim=True).clamp_min(SMALLEST_ROW) / LARGEST
    return (wide / row_scale).to(torch.float8_e4m3fn), row_scale


def scaled_product(rows: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """[M,K] e4m3 times the transposed [N,K] e4m3, float32 [M,N]; sums are rounded to bfloat16 where that is `dtype`."""
    one = torch.ones((), dtype=torch.float32, device=rows.device)
    # fp16 would overflow before the scales come: then the sums leave the kernel in float32.
    out = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    return torch._scaled_mm(rows, weight.t(), scale_a=one, scale_b=one, out_dtype=out).float()
