"""Protocol between the server and a worker: commands and reports as data.

All are frozen and can be pickled, so that a worker may be another process, or an actor on another machine. Images
travel as their pixels. Files are written by the server alone: a worker asks for it (`SaveImage`), so that each image is
recorded before its file appears, whoever computed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from modules.errors import FeatherweightError
from modules.models.files.hashing import HashProgress
from modules.processing.engine.status import EngineStatus
from modules.processing.record.made import MadeImage
from modules.processing.record.spool import Unsaved
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, Result
from modules.processing.request.source_images import SourceImage
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
    is_let_in: bool = False  # between two steps of a task
    made: tuple[MadeImage, ...] = ()


@dataclass(frozen=True)
class RunTask:
    """Do other work: what a starter of this type makes of `request`. `noted`: see `Task.note`."""

    task_id: str
    type: str
    title: str
    request: Mapping[str, Any]
    noted: Mapping[str, Mapping[str, Any]]
    created_at: float
    settings: Settings | None = None
    refresh: bool = False


@dataclass(frozen=True)
class Interrupt:
    """Stop the job or task within one step, or after the batch it is in; what is finished is kept."""

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


class Question(StrEnum):
    """Question that can be asked of a worker at any time, and what it is answered with."""

    UNLOAD = "unload"  # when the model is freed
    RELOAD = "reload"  # when what was loaded or unloaded last is there again
    MEASURE = "measure"  # see `Engine.measure_again`
    MEMORY = "memory"  # `devices.memory_info` of the worker
    EMBEDDINGS = "embeddings"  # see `Engine.list_embeddings`
    ESTIMATE = "estimate"  # see `Planner.planned`
    EXTENSIONS = "extensions"  # what of extensions failed in the worker, and what they cost, by name
    ROOM = "room"  # whether there is room for the images of a request beside what memory holds


@dataclass(frozen=True)
class Ask:
    """Answered with this number, by a thread of its own."""

    number: int
    question: Question
    arguments: tuple[Any, ...] = ()


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
    """Where its model stands, and how far the sha256 of a checkpoint is computed."""

    status: EngineStatus
    hashing: HashProgress | None = None


class Happening(StrEnum):
    """Event that the server repeats with its own job or task: the methods of `Events`, and those of `Task`."""

    STAGE = "stage"
    PLAN = "plan"
    STEP = "step"
    PREVIEW = "preview"
    SAVING = "saving"  # the image without its pixels
    FINISHED_IMAGE = "finished_image"
    SHOW = "show"
    KEEP = "keep"
    PRODUCE = "produce"


@dataclass(frozen=True)
class Happened:
    """This happened to the job or task that runs, with the arguments of the method."""

    what: Happening
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class SaveImage:
    """Write this file. Answered with `Output.put`'s path and sentence; before that `PathChosen` is sent. The worker
    says `Happening.SAVING` where it is an image of the job, and `Noted` in any case: then the file appears."""

    number: int
    image: Image.Image
    unsaved: Unsaved


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
class PutOnRecord:
    """See `Task.note`. Answered when it is on record."""

    number: int
    key: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class LetIn:
    """See `Task.let_images_in`. Until the answer comes jobs may be sent, which are run where the task waits."""

    number: int


@dataclass(frozen=True)
class JobDone:
    """The result. `images` are the result's, which are left out of it. An image that was reported as finished comes
    without its pixels and with its number, counted from 0."""

    result: Result
    images: tuple[tuple[GeneratedImage, int | None], ...]


@dataclass(frozen=True)
class TaskDone:
    """Answer of the task."""

    outcome: Mapping[str, Any]


@dataclass(frozen=True)
class JobFailed:
    """Why there is no result. `category` is the name of a class of `modules.errors`, or of another exception."""

    category: str
    message: str
    is_ours: bool = False  # a `FeatherweightError`, whose message is for people


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
    RunJob | RunTask | Interrupt | Skip | Load | Ask | ChangeSettings | RefreshModels | Stop | PathChosen | Answer
)  # fmt: skip
Report = (
    Ready | EngineReport | Happened | SaveImage | Noted | SaveSource | PutOnRecord | LetIn | JobDone | TaskDone
    | JobFailed | Answer
)  # fmt: skip
Asked = SaveImage | SaveSource | PutOnRecord
"""What the worker waits for."""


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
    return JobFailed(type(error).__name__, str(error), isinstance(error, FeatherweightError))


def error_of(failure: JobFailed) -> FeatherweightError:
    """Data as the error that it was; what was no error for users becomes one."""
    for known in _errors(FeatherweightError):
        if known.__name__ == failure.category:
            return known(failure.message)
    if failure.is_ours:  # of a module that only the worker has loaded
        return FeatherweightError(failure.message)
    return FeatherweightError(
        f"The job failed: internal error {failure.category}: {failure.message}. The log says more."
    )


def _errors(base: type[FeatherweightError]) -> list[type[FeatherweightError]]:
    return [base, *(found for child in base.__subclasses__() for found in _errors(child))]
