"""Events that also tell the memory timeline in which stage a job is.

At each border of stages the heap gives back what is free, so that what a stage needs does not come on top of what the
one before has left behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from PIL import Image

from modules.devices import release_memory
from modules.memory.timeline import MemoryTimeline
from modules.processing.pipeline.events import Events
from modules.processing.record.result import GeneratedImage

if TYPE_CHECKING:
    from modules.sampling.types import StepInfo

STAGES = {
    "loading model": "load",
    "loading networks": "networks",
    "encoding prompts": "text",
    "sampling": "denoise",
    "sampling larger": "denoise larger",
    "decoding": "decode",
    "taking the checkpoint's hash": "save",
}
"""Phase, as people read it, -> stage of the timeline. Enlarging names its tile, and is "enlarge"."""


class Watched:
    """Passes everything on to `events`."""

    def __init__(self, events: Events, timeline: MemoryTimeline) -> None:
        self._events = events
        self._timeline = timeline

    def phase(self, text: str) -> None:
        release_memory(torch.device("cpu"))
        self._timeline.stage("enlarge" if text.startswith("enlarging") else STAGES.get(text, text))
        self._events.phase(text)

    def check(self) -> None:
        self._events.check()

    def plan(self, total_steps: int) -> None:
        self._events.plan(total_steps)

    def step(self, done: int) -> None:
        self._events.step(done)

    def latent(self, info: StepInfo) -> None:
        self._events.latent(info)

    def wants_preview(self, done: int) -> bool:
        return self._events.wants_preview(done)

    def preview(self, image: Image.Image) -> None:
        self._events.preview(image)

    def finished_image(self, image: GeneratedImage) -> None:
        self._events.finished_image(image)
