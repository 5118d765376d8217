"""The small protocol through which a running job is watched and stopped; `jobs` implements it, processing calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from PIL import Image

from modules.processing.record.result import GeneratedImage

if TYPE_CHECKING:
    from modules.sampling.types import StepInfo


class Events(Protocol):
    """Called from the thread that computes; every method must return quickly."""

    def check(self) -> None:
        """Raise `Interrupted` or `Skipped` when the user asked for it; called before each network evaluation."""

    def phase(self, text: str) -> None:
        """What happens now, for people: "loading model", "sampling", "decoding"."""

    def plan(self, total_steps: int) -> None:
        """How many sampling steps the whole job will take, over all batches and passes."""

    def step(self, done: int) -> None:
        """`done` of the planned steps are finished."""

    def latent(self, info: StepInfo) -> None:
        """A step's latents, for those who measure."""

    def wants_preview(self, done: int) -> bool:
        """Whether somebody would look at a preview of the present step."""

    def preview(self, image: Image.Image) -> None:
        """A cheap image of the latent as it now stands."""

    def finished_image(self, image: GeneratedImage) -> None:
        """An image is complete (and saved, if it was to be)."""


class Silent:
    """Events for a caller who only wants the result."""

    def check(self) -> None:
        return

    def phase(self, text: str) -> None:
        return

    def plan(self, total_steps: int) -> None:
        return

    def step(self, done: int) -> None:
        return

    def latent(self, info: StepInfo) -> None:
        return

    def wants_preview(self, done: int) -> bool:
        return False

    def preview(self, image: Image.Image) -> None:
        return

    def finished_image(self, image: GeneratedImage) -> None:
        return
