"""What computes in a worker: an engine of its own, with the same files, settings and extensions as the server's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modules.devices import describe
from modules.jobs.in_process import InProcessExecutor
from modules.models.reading.catalogue import CheckpointCatalogue
from modules.processing.engine.engine import Engine
from modules.processing.memory_estimate.status import EngineStatus
from modules.settings.store import SettingsStore

if TYPE_CHECKING:
    from modules.settings.values import Settings


@dataclass(frozen=True)
class EngineHost:
    """See `modules.jobs.workers.loop.Host`."""

    engine: Engine
    catalogue: CheckpointCatalogue
    settings: SettingsStore
    executor: InProcessExecutor

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

    def unload(self) -> None:
        self.engine.unload()

    def reload(self) -> None:
        self.engine.reload()

    def memory(self) -> Any:
        return self.engine.memory()

    def change_settings(self, settings: Settings) -> None:
        """The engine follows as it does in the server's process."""
        self.settings.mirror(settings)

    def refresh(self) -> None:
        engine = self.engine
        self.catalogue.cache.read_again()
        self.catalogue.refresh()
        engine.vaes.refresh()
        engine.upscalers.catalogue.refresh()
        engine.adapters.files.catalogue.refresh()
        engine.adapters.files.hypernetworks.refresh()
        engine.adapters.files.embeddings.refresh()


def files_known(engine: Engine) -> object:
    """What the server knows of model files; it differs when some were added or removed."""
    files = engine.adapters.files
    return (
        tuple(info.path for info in engine.catalogue.entries),
        tuple(info.path for info in engine.vaes.entries),
        tuple(info.path for info in files.catalogue.entries),
        tuple(info.path for info in files.hypernetworks.entries),
        tuple(engine.upscalers.catalogue.names),
        tuple(sorted(item.name for item in files.embeddings.all)),
    )


def embedding_names(engine: Engine) -> tuple[str, ...]:
    """The names of the embeddings that are here now; reads new files."""
    store = engine.adapters.files.embeddings
    store.refresh()
    return tuple(item.name for item in store.all)
