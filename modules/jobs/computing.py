"""Parts that make images, in the server's process or in a worker's. Holds, does nothing."""

from dataclasses import dataclass, field
from pathlib import Path

from modules.captioning.captioners import Captioners
from modules.flags.flags import Flags
from modules.jobs.line import Line
from modules.models.files.catalogue import CheckpointCatalogue
from modules.postprocessing.operations import Operations
from modules.processing.engine.engine import Engine
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.scripts.library import ScriptLibrary
from modules.settings.store import SettingsStore
from modules.system.paths import Paths


@dataclass(frozen=True, kw_only=True)
class Computing:
    """The engine, what it finds files by, and what else computes. In a worker nothing is put into `queue`."""

    flags: Flags
    paths: Paths
    settings: SettingsStore
    catalogue: CheckpointCatalogue
    engine: Engine
    estimator: MemoryEstimator
    captioners: Captioners
    queue: Line
    scripts: ScriptLibrary = field(default_factory=ScriptLibrary)
    operations: Operations = field(default_factory=Operations)
    history_folders: tuple[Path, ...] | None = None  # that may be read and written; None: any
