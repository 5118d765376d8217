"""The long-lived objects of one running program, built in `webui.py` and handed to the edges. Holds, does nothing."""

from dataclasses import dataclass, field
from pathlib import Path

from modules.access import Access
from modules.captioning.captioners import Captioners
from modules.downloads.downloads import Downloads
from modules.flags.flags import Flags
from modules.history.service import HistoryService
from modules.jobs.batch import Batches
from modules.jobs.dispatch import Dispatcher
from modules.jobs.line import Line
from modules.jobs.workers.group import ModelHost, Workers
from modules.model_cards.cards import CardLibrary
from modules.models.files.catalogue import CheckpointCatalogue
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
    queue: Line
    dispatcher: Dispatcher
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
    downloads: Downloads | None = None
    startup_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the start by what they went into; written while the program starts."""
    history_folders: tuple[Path, ...] | None = None  # that may be imported; None: any
    notices: tuple[str, ...] = ()  # what the user should know about this start: damaged files, an open door

    @property
    def folder_faults(self) -> tuple[str, ...]:
        """Folders of models that could not be read when it was last looked."""
        engine = self.engine
        catalogues = (self.catalogue, engine.vaes, engine.modules, engine.upscalers.catalogue)
        return tuple(dict.fromkeys(fault for one in catalogues for fault in one.faults))

    @property
    def planner(self) -> Planner:
        """What says beforehand how much memory a job will need."""
        return self.workers if self.workers.local else LocalPlanner(self.estimator)

    @property
    def models(self) -> ModelHost:
        """What holds the model that images are made with."""
        return self.workers if self.workers.local else self.engine
