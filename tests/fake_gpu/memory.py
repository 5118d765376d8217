"""The memory of a GPU that is made up: counted as PyTorch's allocator counts it, with a limit, and blocks that are used
again by the queue that let them go."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field

import torch

from tests.fake_gpu.streams import Streams, Uses

ROUND_BYTES = 512
CONTEXT_BYTES = 400 << 20  # what the driver takes of the card for one process


def rounded(count: int) -> int:
    """As PyTorch's allocator rounds a request."""
    return -(-count // ROUND_BYTES) * ROUND_BYTES


@dataclass
class Block:
    """The memory of one storage."""

    size_bytes: int
    stream: str
    uses: Uses = field(default_factory=Uses)
    recorded: bool = False
    label: str = ""


@dataclass
class Memory:
    """Bytes of one GPU. `fail`: asked at each request, whether memory has run out now."""

    total_bytes: int
    streams: Streams
    others_bytes: int = 0
    allocated: int = 0
    reserved: int = 0
    peak: int = 0
    peak_reserved: int = 0
    emptied: int = 0
    failures: int = 0
    fail_at: list[int] = field(default_factory=list)
    requests: int = 0
    is_failing: bool = False
    blocks: dict[int, Block] = field(default_factory=dict)
    _free: list[Block] = field(default_factory=list)
    _refs: dict[int, weakref.ref[torch.UntypedStorage]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def block(self, storage: torch.UntypedStorage) -> Block:
        """The memory of a storage; new ones are asked for. Raises `torch.OutOfMemoryError`."""
        key = storage._cdata
        with self._lock:
            found = self.blocks.get(key)
            if found is not None:
                return found
            size = rounded(storage.nbytes())
            made = self._request(size)
            self.blocks[key] = made

            def forget(_: object) -> None:
                self._give_back(key)

            self._refs[key] = weakref.ref(storage, forget)
            return made

    @property
    def free(self) -> int:
        """What the driver has."""
        return max(0, self.total_bytes - CONTEXT_BYTES - self.others_bytes - self.reserved)

    @property
    def tensors(self) -> int:
        """How many memories are in use."""
        return len(self.blocks)

    def empty_cache(self) -> None:
        """Give unused blocks to the driver."""
        with self._lock:
            self.emptied += 1
            self._free.clear()
            self.reserved = self.allocated

    def begin_peak(self) -> None:
        """Count peaks from here."""
        self.peak, self.peak_reserved = self.allocated, self.reserved

    def _request(self, size: int) -> Block:
        self.requests += 1
        room = self.total_bytes - CONTEXT_BYTES - self.others_bytes
        if (self.is_failing and size > 0) or self.requests in self.fail_at or self.allocated + size > room:
            self.failures += 1
            self.is_failing = False
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB (made up, {self.allocated / 2**20:.0f} "
                f"MiB of {room / 2**20:.0f} in use)."
            )
        stream = self.streams.present
        uses = Uses()
        for index, block in enumerate(self._free):
            if block.stream == stream.name and size <= block.size_bytes <= max(2 * size, 1 << 20):
                uses = self._free.pop(index).uses
                break
        else:
            if self.reserved + size > room:
                self._free.clear()
                self.reserved = self.allocated
            self.reserved = max(self.reserved, self.allocated + size)
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return Block(size, stream.name, uses)

    def _give_back(self, key: int) -> None:
        with self._lock:
            block = self.blocks.pop(key, None)
            self._refs.pop(key, None)
            if block is not None:
                self.allocated -= block.size_bytes
                if block.recorded:  # PyTorch waits for the streams it was told of
                    block.uses = Uses()
                if block.size_bytes:
                    self._free.append(block)
