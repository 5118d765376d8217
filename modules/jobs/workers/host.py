"""Computing in a worker: an engine of its own, with the same files, settings and extensions as the server's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modules.jobs.tasks import Starter, TaskSpec
from modules.jobs.workers.in_process import InProcessExecutor
from modules.jobs.workers.protocol import Question
from modules.models.files.hashing import HashProgress
from modules.processing.engine.engine import Engine
from modules.processing.engine.status import EngineStatus
from modules.processing.memory_estimate.planner import Planner
from modules.processing.request.request import GenerationRequest
from modules.settings.store import SettingsStore
from modules.system.devices import describe

if TYPE_CHECKING:
    from modules.settings.values import Settings


@dataclass(frozen=True)
class EngineHost:
    """See `modules.jobs.workers.loop.Host`."""

    engine: Engine
    settings: SettingsStore
    executor: InProcessExecutor
    planner: Planner
    has_room: Callable[[GenerationRequest], bool]
    starters: Mapping[str, Starter]

    @property
    def device(self) -> str:
        """For people."""
        device = self.engine.machine.device
        name = describe(device)
        if device.type != "cpu":
            return name
        import torch

        threads = torch.get_num_threads()
        return f"{name}, {threads} {'thread' if threads == 1 else 'threads'}"

    @property
    def status(self) -> EngineStatus:
        return self.engine.status

    def load(self, checkpoint: str | None) -> None:
        self.engine.request_load(checkpoint)

    @property
    def hashing(self) -> HashProgress | None:
        return self.engine.hashing

    def answer(self, question: Question, arguments: tuple[Any, ...]) -> Any:
        match question:
            case Question.UNLOAD:
                self.engine.unload()
            case Question.RELOAD:
                self.engine.reload()
            case Question.MEASURE:
                return self.engine.measure_again()
            case Question.MEMORY:
                return self.engine.memory()
            case Question.EMBEDDINGS:
                return self.engine.list_embeddings()
            case Question.EXTENSIONS:
                return self.executor.extension_facts()
            case Question.ESTIMATE:
                return self.planner.planned(*arguments)
            case Question.ROOM:
                return self.has_room(*arguments)
        return None

    def spec_of(self, type: str, request: Mapping[str, Any]) -> TaskSpec:
        return self.starters[type](dict(request))

    def change_settings(self, settings: Settings) -> None:
        """The engine follows as it does in the server's process."""
        self.settings.mirror(settings)

    def rest(self) -> bool:
        threads = self.engine.machine.threads
        return threads is None or threads.try_again()

    def refresh(self) -> None:
        refresh_files(self.engine)
        self.engine.adapters.files.embeddings.refresh()


def refresh_files(engine: Engine) -> None:
    """Look again for model files and their hashes; imports no torch."""
    engine.catalogue.cache.read_again()
    engine.catalogue.refresh()
    engine.vaes.refresh()
    engine.upscalers.catalogue.refresh()
    engine.adapters.files.catalogue.refresh()
    engine.adapters.files.hypernetworks.refresh()


def files_known(engine: Engine) -> object:
    """Return what the server knows of model files; it differs when some were added or removed."""
    files = engine.adapters.files
    return (
        tuple(info.path for info in engine.catalogue.entries),
        tuple(info.path for info in engine.vaes.entries),
        tuple(info.path for info in files.catalogue.entries),
        tuple(info.path for info in files.hypernetworks.entries),
        tuple(engine.upscalers.catalogue.names),
        files.embedding_files,
    )
