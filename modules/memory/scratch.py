"""One reusable buffer a thread, dtype and use for weights that live only as long as one layer's forward pass, or as
long as one slice of them is encoded.

A fresh block of some megabytes comes from the system page by page, which costs more than decoding into it; a buffer
that is used again does not. For the CPU only: GPUs have an allocator that keeps blocks by itself.
"""

import math
import threading

import torch
from torch import Tensor

_LOCAL = threading.local()
SMALLEST_BYTES = 1 << 20  # below, the heap is as quick


def scratch(shape: tuple[int, ...], dtype: torch.dtype, use: str = "weight") -> Tensor:
    """Uninitialised memory that the next call in this thread for this `use` hands out again: let go of it before.

    The tensor is contiguous, on the CPU, and not tracked by autograd.
    """
    count = math.prod(shape)
    if count * dtype.itemsize < SMALLEST_BYTES:
        return torch.empty(shape, dtype=dtype)
    buffers: dict[tuple[torch.dtype, str], Tensor] = _LOCAL.__dict__.setdefault("buffers", {})
    buffer = buffers.get((dtype, use))
    if buffer is None or buffer.numel() < count:
        buffers.pop((dtype, use), None)  # the old one is freed before the new one is made
        with torch.inference_mode(False):  # a buffer made in inference mode could not be written outside of it
            buffer = buffers[dtype, use] = torch.empty(count, dtype=dtype)
    return buffer[:count].view(shape)


def release_scratch() -> None:
    """Free this thread's buffers."""
    _LOCAL.__dict__.pop("buffers", None)
