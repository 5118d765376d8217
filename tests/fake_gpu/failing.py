"""Memory of a made-up GPU that runs out once in a job."""

from __future__ import annotations

from typing import Any

from modules.processing.request.events import Silent
from modules.processing.request.stages import Stage
from tests.fake_gpu.card import FakeCard


class Failing(Silent):
    """Memory runs out at the first request of a stage."""

    def __init__(self, card: FakeCard, stage: Stage) -> None:
        self._card, self._stage, self.is_done = card, stage, False

    def stage(self, stage: Stage, parts: Any = ()) -> None:
        if stage is self._stage and not self.is_done:
            self.is_done = True
            self._card.memory.is_failing = True
