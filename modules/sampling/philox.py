"""Philox 4x32-10 and Box-Muller as CUDA's generator uses them: NVIDIA's noise on any machine.

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (doi:10.1145/2063384.2063405). One draw of n numbers
uses counters (offset, 0, i, 0) for i < n and the seed as key; the first two of four output words make one normal.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF
_TWO_POW32_INV = np.float32(2.3283064e-10)
_TWO_POW32_INV_2PI = np.float32(2.3283064e-10 * 6.2831855)


class PhiloxGenerator:
    """Draws the normals that `torch.randn` draws on a CUDA device from a generator with the same seed."""

    def __init__(self, seed: int) -> None:
        self._key = (seed & _MASK, (seed >> 32) & _MASK)
        self._offset = 0

    def randn(self, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Standard normals fp32 of this shape; each call moves the generator's offset on by one."""
        n = math.prod(shape)
        zeros = np.zeros(n, dtype=np.uint32)
        counter = (np.full(n, self._offset, dtype=np.uint32), zeros, np.arange(n, dtype=np.uint32), zeros)
        self._offset += 1
        first, second, _, _ = philox_4x32(counter, self._key)
        return box_muller(first, second).reshape(shape)


def philox_4x32(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Ten rounds over counters of four words [n] each, with a key of two words; four words [n] out."""
    c0, c1, c2, c3 = counter
    for round_index in range(_ROUNDS):
        k0, k1 = (np.uint32((k + round_index * w) & _MASK) for k, w in zip(key, _WEYL, strict=True))
        product0, product1 = c0.astype(np.uint64) * _MULTIPLIERS[0], c2.astype(np.uint64) * _MULTIPLIERS[1]
        high0, low0 = _split(product0)
        high1, low1 = _split(product1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def _split(product: npt.NDArray[np.uint64]) -> tuple[Words, Words]:
    """High and low halves of 64-bit products."""
    return (product >> np.uint64(32)).astype(np.uint32), product.astype(np.uint32)


def box_muller(x: Words, y: Words) -> npt.NDArray[np.float32]:
    """One normal fp32 from two words each, with the constants of CUDA's `curand_normal`."""
    u = x * _TWO_POW32_INV + _TWO_POW32_INV / np.float32(2)
    v = y * _TWO_POW32_INV_2PI + _TWO_POW32_INV_2PI / np.float32(2)
    normal: npt.NDArray[np.float32] = (np.sqrt(-2.0 * np.log(u)) * np.sin(v)).astype(np.float32)
    return normal
