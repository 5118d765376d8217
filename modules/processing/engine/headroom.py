"""Watches the GPU's memory while a model computes: keeps the headroom free that the user has set for other programs,
and says where the driver has moved memory to main memory.

It looks before every call of the model. Where less is free than the headroom, first what the allocator holds unused
goes back, then the other components wait in main memory, then as many blocks of the denoiser as needed are streamed.
What fits stays where it is; weights come back before a job for which there is room again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from modules.memory.recovery import Recovery
from modules.memory.spill import SpillDetector
from modules.memory.streaming.groups import MAX_BLOCK_BYTES, Level
from modules.memory.streaming.streaming import StreamHandle, StreamOptions, stream
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.offloading import pinned_bytes
from modules.processing.request.stages import Stage
from modules.system.devices import DeviceReading, release_memory
from modules.system.texts import page_text

log = logging.getLogger(__name__)

TURNS = "components take turns"
"""The name of the fallback in `engine.recovery`."""
DENOISER = "unet"
BACK = "VRAM headroom: the denoiser lies on the GPU again."
NOT_KEPT = (
    "VRAM headroom: only {free:.1f} of {wanted:.1f} GB could be left free, with the weights streamed layer by layer. "
    "Choose a smaller size or batch, or close other programs."
)


class GpuWatch:
    """Receives each call of one model in one job."""

    def __init__(
        self,
        model: LoadedModel,
        headroom_bytes: int,
        read: Callable[[], DeviceReading | None],
        clock: Callable[[], float] = time.monotonic,
        max_block_bytes: int = MAX_BLOCK_BYTES,
    ) -> None:
        """`read` gives the memory of the device; None where it cannot be known, and nothing is watched then."""
        self._model = model
        self._headroom = headroom_bytes
        self._read = read
        self._clock = clock
        self._max_block_bytes = max_block_bytes
        self._spill = SpillDetector(model.step_times)
        self._began: float | None = None  # the call before, if it was of the denoiser too
        self._has_moved = False  # so that peaks no longer say what a step takes
        self._notices: dict[str, None] = {}

    @property
    def notices(self) -> tuple[str, ...]:
        """Return what the user should know, in order."""
        return tuple(self._notices)

    def begin_job(self) -> None:
        """Bring back what an earlier job has moved out, if there is room again."""
        handle, now = self._model.streaming, self._read()
        if handle is None or self._model.plan.streaming is not None or now is None:
            return
        missing = handle.offloaded_bytes - handle.live_bytes
        if shortage(now, self._headroom, self._model.step_bytes + missing) == 0:
            handle.remove()
            self._model.streaming = None
            log.info(BACK)

    def begin(self, stage: str, recovery: Recovery, take_turns: Callable[[], None]) -> None:
        """A call begins. `take_turns` moves out what this stage does not need, once `recovery` lets it."""
        now = self._read()
        if now is None:
            return
        self._look_for_spill(stage, now)
        if self._headroom <= 0:
            return
        if stage == Stage.SAMPLE and not self._has_moved:
            self._model.step_bytes = max(self._model.step_bytes, now.peak - now.allocated)
        steps = (_only_release, lambda: self._turns(recovery, take_turns), lambda: self._stream(stage))
        for step in steps:
            if now is None or (now.free >= self._headroom and self._missing(stage, now) == 0):
                return
            if step is not _only_release and self._missing(stage, now) == 0:
                return
            self._model.graphs.pause()
            step()
            release_memory(self._model.device)
            now = self._read()
        if now is not None and stage == Stage.SAMPLE and self._missing(stage, now) and self._is_finest():
            there = now.free + now.reserved - now.allocated - self._model.step_bytes
            self._say(NOT_KEPT.format(free=max(0, there) / 1e9, wanted=self._headroom / 1e9))

    def _missing(self, stage: str, now: DeviceReading) -> int:
        handle = self._model.streaming
        step_bytes = self._model.step_bytes + (0 if handle is None else _on_the_way(handle))
        return shortage(now, self._headroom, step_bytes if stage == Stage.SAMPLE else 0)

    def _turns(self, recovery: Recovery, take_turns: Callable[[], None]) -> None:
        if recovery.apply(TURNS):
            self._has_moved = True
            self._say(f"VRAM headroom ({self._headroom / 1e9:.1f} GB): parts of the model wait in main memory.")
        take_turns()

    def _stream(self, stage: str) -> None:
        """Have as much less of the denoiser on the device as is missing."""
        now = self._read()
        missing = 0 if now is None else self._missing(stage, now)
        if stage != Stage.SAMPLE or missing == 0:
            return
        self._has_moved = True
        model, handle = self._model, self._model.streaming
        if handle is None:
            options = StreamOptions(max_block_bytes=self._max_block_bytes, pinned_bytes=pinned_bytes(model.device))
            model.streaming = handle = stream({DENOISER: model.unet}, model.device, Level.BLOCK, options)
            handle.streamer.keep(max(0, handle.offloaded_bytes - missing - _on_the_way(handle)))
        elif handle.streamer.kept_bytes > 0:
            handle.streamer.keep(max(0, handle.streamer.kept_bytes - missing))
        else:
            for level in (Level.BLOCK, Level.LAYER):
                if handle.make_finer(DENOISER, level, self._max_block_bytes) is not None:
                    break
        moved = handle.offloaded_bytes - handle.streamer.kept_bytes
        log.info(
            "VRAM headroom: %.2f GB were missing; %.2f GB of weights are streamed now.", missing / 1e9, moved / 1e9
        )
        self._say(page_text(f"VRAM headroom ({self._headroom / 1e9:.1f} GB): weights of the denoiser are streamed."))

    def _is_finest(self) -> bool:
        handle = self._model.streaming
        return handle is not None and not handle.streamer.spends and handle.levels.get(DENOISER) is Level.LAYER

    def _look_for_spill(self, stage: str, now: DeviceReading) -> None:
        if stage != Stage.SAMPLE:
            self._began = None
            return
        before, self._began = self._began, self._clock()
        seconds = None if before is None else self._began - before
        found = self._spill.step(self._model.unet_runner.elements, seconds, now)
        if found is not None:
            self._say(found.notice)

    def _say(self, notice: str) -> None:
        if notice not in self._notices:
            log.warning("%s", notice)
        self._notices[notice] = None


def _only_release() -> None:
    """The first step: what is released after each of them may be enough."""


def _on_the_way(handle: StreamHandle) -> int:
    """Bytes of what is brought in and let go within a step: the group in use, and one ahead of it."""
    largest = max((group.size_bytes for group in handle.groups if not group.alone), default=0)
    return largest * (2 if handle.streamer.spends else 1)


def shortage(now: DeviceReading, headroom_bytes: int, step_bytes: int) -> int:
    """Return by how many bytes less than the headroom is free while a step takes `step_bytes`, if the allocator keeps
    nothing that it does not use."""
    return max(0, headroom_bytes - (now.free + now.reserved - now.allocated - step_bytes))
