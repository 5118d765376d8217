"""The steps of a job over all batches and passes: counted, reported, previewed."""

from __future__ import annotations

from torch import Tensor

from modules.processing.engine.lease import ModelInUse
from modules.processing.pipeline.previews import Previews
from modules.processing.request.events import Events
from modules.processing.request.stages import Stage
from modules.sampling.types import StepInfo


class StepProgress:
    """Tells events of each step. `unfinished` is what the present batch would be if it stopped now, [B,C,h,w]."""

    def __init__(self, events: Events, in_use: ModelInUse, previews: Previews, whole_batch: bool) -> None:
        """`whole_batch`: previews show all images of a batch, not only the first."""
        self._events = events
        self._in_use = in_use
        self._previews = previews
        self._whole_batch = whole_batch
        self._per_batch = 0
        self._before = 0  # finished by earlier batches and passes
        self._steps = 0  # of the pass that runs now
        self.unfinished: Tensor | None = None

    def plan(self, steps_per_batch: int, batch_count: int) -> None:
        """How many steps there will be."""
        self._per_batch = steps_per_batch
        self._events.plan(steps_per_batch * batch_count)

    def begin_batch(self, number: int) -> None:
        """A batch begins, whatever became of the one before."""
        self._before, self._steps, self.unfinished = number * self._per_batch, 0, None

    def begin_pass(self, steps: int, stage: Stage) -> None:
        """A pass begins."""
        self._before += self._steps
        self._steps = steps
        self._events.stage(stage)

    def end_pass(self) -> None:
        """A pass is over, even with fewer steps than it should have had."""
        self._events.step(self._before + self._steps)

    def stage(self, stage: Stage) -> None:
        """See `Events.stage`."""
        self._events.stage(stage)

    def check(self) -> None:
        """See `Events.check`."""
        self._events.check()

    def on_step(self, info: StepInfo) -> None:
        """A sampler has made a step."""
        done = self._before + min(info.index + 1, self._steps)
        self.unfinished = info.denoised
        self._events.step(done, info)
        if self._events.wants_preview(self._before + info.index + 1):  # DPM adaptive makes more than were planned
            image = self._previews.image(self._in_use.model, info.denoised if self._whole_batch else info.denoised[:1])
            if image is not None:
                self._events.preview(image)
