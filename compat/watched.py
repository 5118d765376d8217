"""The events of a job that runs, as `shared.state` shows them, and the ways in which an extension stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PIL import Image

from modules.errors import FeatherweightError, Interrupted, Skipped
from modules.processing.request.events import Events, ForwardedEvents
from modules.processing.request.result import GeneratedImage

if TYPE_CHECKING:
    from modules.sampling.types import StepInfo


class Watched(ForwardedEvents):
    """Events that also say how far the job is, and through which an extension stops it."""

    def __init__(self, events: Events) -> None:
        super().__init__(events)
        self.steps = self.step_now = self.images_done = 0
        self.preview_now: Any = None
        self.interrupted = self.skipped = False

    def check(self) -> None:
        if self.interrupted:
            raise Interrupted("A script stopped the job.")
        if self.skipped:
            self.skipped = False
            raise Skipped("A script skipped the batch.")
        super().check()

    def is_asked_to_stop(self) -> bool:
        """Whether the user stopped the job. That a batch was skipped is kept for the next check."""
        try:
            super().check()
        except Skipped:
            self.skipped = True
        except FeatherweightError:
            return True
        return False

    def plan(self, total_steps: int) -> None:
        self.steps = total_steps
        super().plan(total_steps)

    def step(self, done: int, info: StepInfo | None = None) -> None:
        self.step_now = done
        super().step(done, info)

    def preview(self, image: Image.Image) -> None:
        self.preview_now = image
        super().preview(image)

    def finished_image(self, image: GeneratedImage) -> None:
        self.images_done += 1
        super().finished_image(image)
