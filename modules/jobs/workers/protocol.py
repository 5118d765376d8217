"""What the server and a worker say to each other: commands and reports as data.

All are frozen and can be pickled, so that a worker may be another process, or an actor on another machine. Images
travel as their pixels. Files are written by the server alone: a worker asks for it (`SaveImage`), so that each image is
recorded before its file appears, whoever computed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from modules.errors import FeatherweightError
from modules.processing.memory_estimate.status import EngineStatus
from modules.processing.pipeline.stages import Part, Stage
from modules.processing.record.made import MadeImage
from modules.processing.record.result import GeneratedImage, Result
from modules.processing.record.spool import Unsaved
from modules.processing.request import GenerationRequest
from modules.processing.start import SourceImage
from modules.settings.values import Settings

NO_PIXELS = Image.new("RGB", (1, 1))
"""Instead of an image that is known already."""

# -- commands ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunJob:
    """Make a request's images, but those that an earlier try has finished; one at a time."""

    task_id: str
    title: str
    request: GenerationRequest
    preview_every: int = 0
    refresh: bool = False  # model files were added or removed
    made: tuple[MadeImage, ...] = ()


@dataclass(frozen=True)
class Interrupt:
    """Stop the job within one step, or after the batch it is in; what is finished is kept."""

    task_id: str
    after_batch: bool = False


@dataclass(frozen=True)
class Skip:
    """Leave the present batch of the job."""

    task_id: str


@dataclass(frozen=True)
class Load:
    """Load a checkpoint in the background (None: the first there is)."""

    checkpoint: str | None


@dataclass(frozen=True)
class Unload:
    """Free the model. Answered when it is freed."""

    number: int


@dataclass(frozen=True)
class Reload:
    """Load again what was loaded or unloaded last. Answered when it is there."""

    number: int


@dataclass(frozen=True)
class AskMemory:
    """Answered with `devices.memory_info` of the worker."""

    number: int


@dataclass(frozen=True)
class ChangeSettings:
    """The settings are these now; a running job keeps its own."""

    settings: Settings


@dataclass(frozen=True)
class RefreshModels:
    """Look for files that were added or removed."""


@dataclass(frozen=True)
class Stop:
    """End."""


# -- reports -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """The worker takes commands. `device` for people."""

    pid: int
    device: str


@dataclass(frozen=True)
class EngineReport:
    """Where its model stands."""

    status: EngineStatus


@dataclass(frozen=True)
class StageBegan:
    """See `Events.stage`."""

    stage: Stage
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Planned:
    """See `Events.plan`."""

    total_steps: int


@dataclass(frozen=True)
class Stepped:
    """See `Events.step`."""

    done: int


@dataclass(frozen=True)
class PreviewMade:
    """See `Events.preview`."""

    image: Image.Image


@dataclass(frozen=True)
class SaveImage:
    """Write this file. Answered with `Output.put`'s path and sentence; before that `PathChosen` is sent. The worker
    says `Saving` where it is an image of the job, and `Noted` in any case: then the file appears."""

    number: int
    image: Image.Image
    unsaved: Unsaved


@dataclass(frozen=True)
class Saving:
    """See `Events.saving`; the image without its pixels."""

    image: GeneratedImage
    path: Path
    fingerprint: str


@dataclass(frozen=True)
class Noted:
    """The worker knows the path of `PathChosen`."""

    number: int


@dataclass(frozen=True)
class SaveSource:
    """Write an image that the job starts from. Answered with a sentence, or None."""

    number: int
    source: SourceImage
    request: GenerationRequest


@dataclass(frozen=True)
class ImageFinished:
    """See `Events.finished_image`."""

    image: GeneratedImage


@dataclass(frozen=True)
class JobDone:
    """The result. `images` are the result's, which are left out of it. An image that was reported as finished comes
    without its pixels and with its number, counted from 0."""

    result: Result
    images: tuple[tuple[GeneratedImage, int | None], ...]


@dataclass(frozen=True)
class JobFailed:
    """Why there is none. `category` is the name of a class of `modules.errors`, or of another exception."""

    category: str
    message: str


# -- in both directions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PathChosen:
    """Where the file of `SaveImage` is about to appear."""

    number: int
    path: Path
    fingerprint: str


@dataclass(frozen=True)
class Answer:
    """To what had this number. `problem`: why it could not be done."""

    number: int
    value: Any = None
    problem: JobFailed | None = None


Command = (
    RunJob | Interrupt | Skip | Load | Unload | Reload | AskMemory | ChangeSettings | RefreshModels | Stop | PathChosen
    | Answer
)  # fmt: skip
Report = (
    Ready | EngineReport | StageBegan | Planned | Stepped | PreviewMade | SaveImage | Saving | Noted | SaveSource
    | ImageFinished | JobDone | JobFailed | Answer
)  # fmt: skip


class Channel(Protocol):
    """The worker's end: whole messages, in order. `send` may be called from several threads."""

    def send(self, report: Report) -> None:
        """Raises `OSError` when nobody listens any more."""

    def receive(self) -> Command:
        """Waits; raises `EOFError` or `OSError` when nobody is there any more."""


@dataclass(frozen=True)
class CarriedImage(MadeImage):
    """An image of an earlier try with its pixels, for a worker that does not see its file."""

    image: Image.Image = field(default_factory=lambda: NO_PIXELS, compare=False, repr=False)

    def read(self) -> GeneratedImage | None:
        return GeneratedImage(self.image, self.infotext, self.seed, self.subseed, self.path, self.role, key=self.key)


def failure_of(error: BaseException) -> JobFailed:
    """An exception as data."""
    return JobFailed(type(error).__name__, str(error))


def error_of(failure: JobFailed) -> FeatherweightError:
    """Data as the error that it was; what was no error for users becomes one."""
    for known in _errors(FeatherweightError):
        if known.__name__ == failure.category:
            return known(failure.message)
    return FeatherweightError(
        f"The job failed: internal error {failure.category}: {failure.message}. The log says more."
    )


def _errors(base: type[FeatherweightError]) -> list[type[FeatherweightError]]:
    return [base, *(found for child in base.__subclasses__() for found in _errors(child))]
