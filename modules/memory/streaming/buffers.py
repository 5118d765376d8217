"""Memory that is used again for the next group: fresh blocks above 32 MB come from the system page by page."""

import threading

import torch
from torch import Tensor

STEP_BYTES = 1 << 16  # sizes are rounded up to it, so that groups of nearly one size share buffers
MAX_SURPLUS = 1.5  # how much larger than needed a buffer may be


class Buffers:
    """Buffers on the CPU, uint8. A buffer that somebody still looks into is never handed out again."""

    def __init__(self, spare_bytes: int) -> None:
        """At most `spare_bytes` are kept that nobody uses."""
        self._spare_bytes = spare_bytes
        self._free: list[Tensor] = []
        self._lock = threading.Lock()

    def take(self, count: int) -> Tensor:
        """A buffer of at least `count` bytes, uninitialised."""
        needed = -(-max(count, 1) // STEP_BYTES) * STEP_BYTES
        with self._lock:
            fitting = [buffer for buffer in self._free if needed <= buffer.numel() <= needed * MAX_SURPLUS]
            if fitting:
                chosen = min(fitting, key=Tensor.numel)
                self._free = [buffer for buffer in self._free if buffer is not chosen]
                return chosen
        with torch.inference_mode(False):
            return torch.empty(needed, dtype=torch.uint8)

    def give_back(self, buffer: Tensor) -> None:
        """Take back what `take` gave."""
        if is_looked_into(buffer):
            return  # its memory is freed when the last one lets go of it
        with self._lock:
            self._free.append(buffer)
            while self._free and sum(item.numel() for item in self._free) > self._spare_bytes:
                del self._free[0]

    def clear(self) -> None:
        """Free all that nobody uses."""
        with self._lock:
            self._free.clear()


def is_looked_into(buffer: Tensor) -> bool:
    """Whether other tensors (a view that somebody kept) share the buffer's memory; True where PyTorch does not say."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    if count is None:
        return True
    storage = buffer.untyped_storage()
    return bool(count(storage._cdata) > 2)  # `buffer` and `storage`
