"""The way of a group's bytes from where they rest to where they are used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from modules.memory.streaming.buffers import Buffers
from modules.memory.streaming.groups import Group, Piece
from modules.memory.streaming.source import RamSource, size_bytes
from modules.system.devices import gpu_of, pinned_memory

log = logging.getLogger(__name__)


class Transfer(Protocol):
    """A piece on its way."""

    def wait(self) -> Tensor:
        """Its bytes (uint8, at least as many as it has) on the device, for use in the present stream."""

    def discard(self) -> None:
        """Cancel a transfer that is not needed after all."""


class CopyEngine(Protocol):
    """Moves pieces to one device."""

    @property
    def device(self) -> torch.device: ...

    def send(self, piece: Piece, ahead: bool) -> Transfer:
        """Begin to bring a piece; `ahead` of its use, this returns before the bytes are read."""

    def release(self, flat: Tensor) -> None:
        """Release what `Transfer.wait` gave, for work that is not queued yet."""

    def close(self) -> None:
        """Wait for what is under way, and free what is held."""


def fill(piece: Piece, target: Tensor) -> None:
    """Read the weights of a piece into `target`, uint8 on the CPU."""
    for slot, offset in zip(piece.slots, piece.offsets, strict=True):
        slot.source.read_into(target[offset : offset + size_bytes(slot.source)])


def _reader() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="featherweight-stream")


# -- the CPU: a thread reads the next piece while the present one computes ---------------------------------------


class ReadingCopyEngine:
    """Reads into buffers in main memory, which is where the CPU computes.

    With another `device` the bytes are copied there when they are needed, without a stream of its own.
    """

    def __init__(self, device: torch.device | None = None, spare_bytes: int = 0) -> None:
        """`spare_bytes`: of buffers kept for the next pieces."""
        self.device = device or torch.device("cpu")
        self._buffers = Buffers(spare_bytes)
        self._thread = _reader()

    def send(self, piece: Piece, ahead: bool) -> Transfer:
        """See `CopyEngine`."""
        if ahead:
            return _Read(self, self._thread.submit(self._read, piece))
        done: Future[Tensor] = Future()
        done.set_result(self._read(piece))
        return _Read(self, done)

    def release(self, flat: Tensor) -> None:
        """See `CopyEngine`."""
        if flat.device.type == "cpu":
            self._buffers.give_back(flat)

    def close(self) -> None:
        """See `CopyEngine`."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._buffers.clear()

    def _read(self, piece: Piece) -> Tensor:
        buffer = self._buffers.take(piece.size_bytes)
        fill(piece, buffer)
        return buffer


@dataclass
class _Read:
    copy_engine: ReadingCopyEngine
    done: Future[Tensor]

    def wait(self) -> Tensor:
        buffer = self.done.result()
        if self.copy_engine.device.type == "cpu":
            return buffer
        flat = buffer.to(self.copy_engine.device)
        self.copy_engine.release(buffer)
        return flat

    def discard(self) -> None:
        if not self.done.cancel():
            self.done.add_done_callback(self._drop)

    def _drop(self, done: Future[Tensor]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.copy_engine.release(done.result())


# -- GPUs: a stream of its own -------------------------------------------------------------------------------


class Streams(Protocol):
    """The part of `modules.system.devices.Gpu` that is used here."""

    def new_stream(self, device: torch.device) -> Any: ...
    def current_stream(self, device: torch.device) -> Any: ...
    def in_stream(self, stream: Any) -> AbstractContextManager[Any]: ...


Pin = Callable[[int], Tensor]


def pinned_for(device: torch.device) -> Pin:
    """Return a function that gives page-locked main memory, uint8 [count], from which a GPU copies by itself; it raises
    RuntimeError if there is none."""
    return lambda count: pinned_memory(device, (count,), torch.uint8)


class StreamCopyEngine:
    """Copies on a stream of its own, while the present stream computes; the host waits for neither.

    Pieces that rest in pinned memory (`Piece.host`) are copied at once; others are read into one of two pinned
    buffers by a thread first. Memory on the GPU is asked for by the thread that computes, and the copy into it waits
    for all work queued up to then: so memory that was let go a moment ago can be used again without the host waiting.
    `record_stream` tells PyTorch's allocator about the present stream in addition, which is needed where several
    threads compute with one module on streams of their own; it lets memory go a little later.
    """

    def __init__(
        self,
        device: torch.device,
        record_stream: bool = False,
        backend: Streams | None = None,
        pin: Pin | None = None,
    ) -> None:
        """`backend` and `pin` stand for the GPU in tests."""
        self.device = device
        self._record_stream = record_stream
        found = backend or gpu_of(device)
        assert found is not None, f"{device} has no streams"
        self._backend: Streams = found
        self._side = self._backend.new_stream(device)
        self._thread = _reader()
        self._staging = [_Staging(pin or pinned_for(device)) for _ in range(2)]

    def send(self, piece: Piece, ahead: bool) -> Transfer:
        """See `CopyEngine`."""
        with self._backend.in_stream(self._side), torch.inference_mode(False):
            flat = torch.empty(piece.size_bytes, dtype=torch.uint8, device=self.device)
        freed = self._backend.current_stream(self.device).record_event()
        transfer = _Copied(self, flat)
        if piece.host is not None:
            transfer.copied = self._copy(piece.host, flat, freed)
        elif ahead:
            transfer.reading = self._thread.submit(self._read_and_copy, piece, flat, freed)
        else:
            # Also in the thread: the staging buffers are its own.
            transfer.copied = self._thread.submit(self._read_and_copy, piece, flat, freed).result()
        return transfer

    def release(self, flat: Tensor) -> None:
        """See `CopyEngine`."""
        if self._record_stream:
            flat.record_stream(self._backend.current_stream(self.device))

    def close(self) -> None:
        """See `CopyEngine`."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        for staging in self._staging:
            staging.wait()
        self._staging.clear()

    def keep_effect(self, flat: Tensor, copied: Any) -> Tensor:
        """Make the present stream, not the host, wait for a copy."""
        self._backend.current_stream(self.device).wait_event(copied)
        return flat

    def _read_and_copy(self, piece: Piece, flat: Tensor, freed: Any) -> Any:
        staging = self._staging[0]
        self._staging.reverse()
        host = staging.of(piece.size_bytes)
        fill(piece, host)
        staging.copied = self._copy(host, flat, freed)
        return staging.copied

    def _copy(self, host: Tensor, flat: Tensor, freed: Any) -> Any:
        with self._backend.in_stream(self._side):
            self._side.wait_event(freed)
            flat.copy_(host[: flat.numel()], non_blocking=True)
            return self._side.record_event()


@dataclass
class _Copied:
    copy_engine: StreamCopyEngine
    flat: Tensor
    copied: Any = None
    reading: Future[Any] | None = None

    def wait(self) -> Tensor:
        if self.reading is not None:
            self.copied = self.reading.result()
        return self.copy_engine.keep_effect(self.flat, self.copied)

    def discard(self) -> None:
        # Its memory belongs to the side stream, on which the copy is queued: whoever gets it next comes after.
        if self.reading is not None:
            self.reading.cancel()


class _Staging:
    """A pinned buffer that is filled again when the copy out of it is done."""

    def __init__(self, pin: Pin) -> None:
        self._pin = pin
        self._buffer: Tensor | None = None
        self.copied: Any = None

    def of(self, count: int) -> Tensor:
        """At least `count` bytes."""
        self.wait()
        if self._buffer is None or self._buffer.numel() < count:
            self._buffer = None  # the old one is freed before the new one is made
            self._buffer = _pinned_or_not(count, self._pin)
        return self._buffer[:count]

    def wait(self) -> None:
        """Wait until nothing is copied out of it any more."""
        if self.copied is not None:
            self.copied.synchronize()
            self.copied = None


def _pinned_or_not(count: int, pin: Pin) -> Tensor:
    """Without page-locked memory a GPU copies with the CPU's help: slower, and right all the same."""
    try:
        return pin(count)
    except RuntimeError as error:  # systems allow a share of main memory only; some (WSL, containers) very little
        log.warning("No %.0f MB of main memory could be pinned: %s", count / 1e6, str(error).partition("\n")[0])
        return torch.empty(count, dtype=torch.uint8)


def taken_bytes(count: int) -> int:
    """Return the bytes that PyTorch takes for `count` bytes of pinned memory: the next power of two."""
    return 1 << max(0, count - 1).bit_length()


def pin(groups: Iterable[Group], pinned_bytes: int | None, memory: Pin) -> None:
    """Put the pieces that rest in main memory into pinned memory, as far as the budget (None: all) and the system go;
    the others stay where they are."""
    for group in groups:
        for piece in group.pieces:
            if not all(isinstance(slot.source, RamSource) for slot in piece.slots):
                continue
            taken = taken_bytes(piece.size_bytes)
            if pinned_bytes is not None and taken > pinned_bytes:
                continue
            try:
                host = memory(piece.size_bytes)
            except RuntimeError as error:
                log.warning("No more main memory could be pinned: %s", str(error).partition("\n")[0])
                return
            pinned_bytes = None if pinned_bytes is None else pinned_bytes - taken
            fill(piece, host)
            piece.host = host
            for slot, offset in zip(piece.slots, piece.offsets, strict=True):
                part = host[offset : offset + size_bytes(slot.source)]
                slot.source = RamSource(part.view(slot.source.dtype).view(slot.source.shape))
                slot.first = slot.source
