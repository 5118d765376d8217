"""The operation "decode 8-bit weights": by a kernel in Triton on GPUs that it compiles for, else by PyTorch.

Before it is used for a pair of dtypes, the kernel decodes every code of the stored dtype, and the result is compared
with PyTorch's, bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from modules.memory.kernels.operation import Backend, Operation, triton_problem

log = logging.getLogger(__name__)

CODES = {torch.float8_e4m3fn: 0x7F, torch.float8_e5m2: 0x7C, torch.int8: 0x80}
"""Stored dtypes, and how many positive codes are finite numbers."""


class WeightDecoder:
    """Decodes weights on one GPU by the kernels of `modules.memory.kernels.triton_decoding`."""

    def __init__(self, device: torch.device) -> None:
        from modules.memory.kernels import triton_decoding

        self._kernels, self._device = triton_decoding, device
        self._is_right = cache(self._check)
        self._compare(torch.int8, True, torch.float16)  # raises where nothing can be compiled or run

    def fits(self, data: Tensor, scale: Tensor | None, dtype: torch.dtype) -> bool:
        """Say whether a weight can be decoded to `dtype`. `scale`: one float32 number per row."""
        return self._kernels.fits(data, scale) and self._is_right(data.dtype, scale is not None, dtype)

    def of_block(self, sources: Sequence[tuple[Tensor, Tensor | None, int]]) -> Callable[[Tensor], None]:
        """Return what decodes weights that `fits` into one piece of memory; see `triton_decoding.block_decoder`."""
        return self._kernels.block_decoder(sources)

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> bool:
        """Decode one weight into `out`, of its shape and strides; False: PyTorch has to."""
        if out.stride() != data.stride() or not self.fits(data, scale, out.dtype):
            return False
        self._kernels.decode_weight(data, scale, out)
        return True

    def _check(self, stored: torch.dtype, is_scaled: bool, dtype: torch.dtype) -> bool:
        """Say whether the kernel decodes `stored` to `dtype` as PyTorch does; where it does not, log why."""
        try:
            is_right = self._compare(stored, is_scaled, dtype)
        except Exception:  # compilers raise errors of many types; the kernel is only ever an option
            log.exception("The kernel that decodes %s to %s does not work here; PyTorch does it", stored, dtype)
            return False
        if not is_right:
            log.warning("The kernel that decodes %s to %s is wrong on this GPU; PyTorch does it.", stored, dtype)
        return is_right

    def _compare(self, stored: torch.dtype, is_scaled: bool, dtype: torch.dtype) -> bool:
        """Compare all codes with what PyTorch decodes, in rows of an even and an odd length."""
        positive = torch.arange(CODES[stored], dtype=torch.uint8)
        codes = torch.cat((positive, positive | 0x80)).repeat(18)[: 18 * 240].view(stored).to(self._device)
        is_right = True
        for rows in (9, 16):
            data = codes.view(rows, -1)
            scale = torch.linspace(0.01, 3, rows, device=self._device) if is_scaled else None
            expected = data.to(torch.float32) * (1.0 if scale is None else scale[:, None])
            out, together = torch.empty(2, *data.shape, dtype=dtype, device=self._device)
            self._kernels.decode_weight(data, scale, out)
            self._kernels.block_decoder([(data, scale, 0)])(together.view(-1))
            is_right &= torch.equal(out, expected.to(dtype)) and torch.equal(together, out)
        return is_right


DECODING: Operation[Any] = Operation("decoding 8-bit weights", (Backend("Triton", triton_problem, WeightDecoder),))


def what_decodes(device: torch.device) -> str:
    """Say what decodes 8-bit weights on a GPU, and why if it is PyTorch; nothing for the CPU."""
    if device.type == "cpu":
        return ""
    problem = DECODING.problem(device)
    return "decoded by a kernel in Triton" if problem is None else f"decoded by PyTorch: {problem}"
