"""The long-lived objects of one running program, built in `webui.py` and handed to the edges. Holds, does nothing."""

from dataclasses import dataclass, field
from pathlib import Path

from modules.access import Access
from modules.captioning.captioners import Captioners
from modules.flags.flags import Flags
from modules.history.service import HistoryService
from modules.jobs.batch import Batches
from modules.jobs.queue import JobQueue
from modules.jobs.workers.group import ModelHost, Workers
from modules.model_cards.cards import CardLibrary
from modules.models.reading.catalogue import CheckpointCatalogue
from modules.paths import Paths
from modules.postprocessing.operations import Operations
from modules.processing.engine.engine import Engine
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.memory_estimate.planner import LocalPlanner, Planner
from modules.processing.record.spool import Spool
from modules.scripts.library import ScriptLibrary
from modules.settings.store import SettingsStore


@dataclass(frozen=True)
class Services:
    """What the page, the HTTP API and the command line work with."""

    flags: Flags
    paths: Paths
    settings: SettingsStore
    catalogue: CheckpointCatalogue
    engine: Engine
    queue: JobQueue
    version: str
    estimator: MemoryEstimator
    captioners: Captioners
    history: HistoryService
    spool: Spool
    scripts: ScriptLibrary = field(default_factory=ScriptLibrary)
    access: Access = field(default_factory=Access)
    batches: Batches = field(default_factory=Batches)
    operations: Operations = field(default_factory=Operations)
    cards: CardLibrary = field(default_factory=lambda: CardLibrary(()))
    workers: Workers = field(default_factory=Workers)
    startup_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the start by what they went into; written while the program starts."""
    history_folders: tuple[Path, ...] | None = None  # that may be imported; None: any
    notices: tuple[str, ...] = ()  # what the user should know about this start: damaged files, an open door

    @property
    def planner(self) -> Planner:
        """What says beforehand how much memory a job will need."""
        return self.workers if self.workers.local else LocalPlanner(self.estimator)

    @property
    def models(self) -> ModelHost:
        """What holds the model that images are made with."""
        return self.workers if self.workers.local else self.engine
