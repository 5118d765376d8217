"""The small protocol through which a running job is watched and stopped; `jobs` implements it, processing calls it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from PIL import Image

from modules.processing.request.result import GeneratedImage
from modules.processing.request.stages import Part, Stage

if TYPE_CHECKING:
    from modules.sampling.types import StepInfo


class Events(Protocol):
    """Called from the thread that computes; every method must return quickly. Those that a subclass does not have do
    nothing."""

    def check(self) -> None:
        """Raise `Interrupted` or `Skipped` when the user asked for it; called before each call of the denoiser."""
        return

    def stage(self, stage: Stage, parts: Sequence[Part] = ()) -> None:
        """Report what happens from now on; `parts` if it is done in several."""
        return

    def plan(self, total_steps: int) -> None:
        """How many sampling steps the whole job will take, over all batches and passes."""
        return

    def step(self, done: int, info: StepInfo | None = None) -> None:
        """`done` of the planned steps are finished; `info`: the latents of the last one, where it was just made."""
        return

    def wants_preview(self, done: int) -> bool:
        """Whether somebody would look at a preview of the present step."""
        return False

    def preview(self, image: Image.Image) -> None:
        """A cheap image of the latent as it now stands."""
        return

    def saving(self, image: GeneratedImage, path: Path, fingerprint: str) -> None:
        """The file of an image is about to appear at `path`, with this `modules.system.atomic_files.fingerprint`."""
        return

    def finished_image(self, image: GeneratedImage) -> None:
        """An image is complete (and saved, if it was to be)."""
        return


class Silent(Events):
    """Events for a caller who only wants the result."""


class ForwardedEvents:
    """Events that go on to others; what stands between overrides the few that it changes."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def check(self) -> None:
        self._events.check()

    def stage(self, stage: Stage, parts: Sequence[Part] = ()) -> None:
        self._events.stage(stage, parts)

    def plan(self, total_steps: int) -> None:
        self._events.plan(total_steps)

    def step(self, done: int, info: StepInfo | None = None) -> None:
        self._events.step(done, info)

    def wants_preview(self, done: int) -> bool:
        return self._events.wants_preview(done)

    def preview(self, image: Image.Image) -> None:
        self._events.preview(image)

    def saving(self, image: GeneratedImage, path: Path, fingerprint: str) -> None:
        self._events.saving(image, path, fingerprint)

    def finished_image(self, image: GeneratedImage) -> None:
        self._events.finished_image(image)
