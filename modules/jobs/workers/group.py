"""All workers of a server: what the page shows of them, and the models that they hold in place of its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from modules.devices import Memory, memory_info
from modules.errors import BusyError
from modules.jobs.job import Job
from modules.jobs.lanes import Lane
from modules.jobs.workers.executor import WorkerExecutor, WorkerFacts
from modules.models.reading.hashing import HashProgress
from modules.processing.engine.engine import Engine
from modules.processing.memory_estimate.status import EngineState, EngineStatus
from modules.settings.values import Settings


class Shown(Protocol):
    """A worker that can be begun and shown."""

    changed: Callable[[], object]

    @property
    def facts(self) -> WorkerFacts: ...

    def start(self) -> None:
        """Begin; returns at once."""


class ModelHost(Protocol):
    """What holds the model that images are made with: the engine of this process, or workers."""

    @property
    def status(self) -> EngineStatus:
        """Where it stands; never waits."""

    @property
    def hashing(self) -> HashProgress | None:
        """How far the sum of a checkpoint is."""

    def request_load(self, wanted: str | None) -> None:
        """Load in the background; returns at once."""

    def unload(self) -> None:
        """Free the model; waits for a running image."""

    def reload(self) -> None:
        """Load again what was loaded or unloaded last; waits."""

    def memory(self) -> dict[str, Memory]:
        """See `devices.memory_info`."""


class Workers:
    """`local` hold models of this program; `others` (other servers) only take jobs."""

    hashing: HashProgress | None = None  # workers take sums themselves

    def __init__(
        self, local: Sequence[WorkerExecutor] = (), others: Sequence[Shown] = (), lanes: Sequence[Lane] = ()
    ) -> None:
        self.local = tuple(local)
        self.others = tuple(others)
        self.lanes = tuple(lanes)

    def start(self) -> None:
        """Begin all of them in the background."""
        for worker in (*self.local, *self.others):
            worker.start()

    @property
    def facts(self) -> tuple[WorkerFacts, ...]:
        """All of them for the page."""
        return tuple(worker.facts for worker in (*self.local, *self.others))

    @property
    def status(self) -> EngineStatus:
        """Of the first that has a model, else of the first."""
        found = [worker.status for worker in self.local]
        return next((status for status in found if status.state is EngineState.READY), found[0])

    def request_load(self, wanted: str | None) -> None:
        for worker in self.local:
            worker.load(wanted)

    def unload(self) -> None:
        for worker in self.local:
            worker.unload()

    def reload(self) -> None:
        for worker in self.local:
            worker.reload()

    def change_settings(self, settings: Settings) -> None:
        """The settings are these now."""
        for worker in self.local:
            worker.change_settings(settings)

    def memory(self) -> dict[str, Memory]:
        """Of the first that answers; of this process while none does."""
        for worker in self.local:
            try:
                found: dict[str, Memory] = worker.memory()
            except BusyError:
                continue
            return found
        import torch

        return memory_info(torch.device("cpu"))

    def wakes(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when one can take a job, or no longer can."""
        for worker in (*self.local, *self.others):
            worker.changed = wake


def worker_lane(executor: WorkerExecutor, engine: Engine, is_first: bool) -> Lane:
    """The lane of a worker of this machine. The first takes tasks too, which run in the server's process: the worker
    frees its model meanwhile where both would share a GPU, and the server's engine frees its own afterwards."""

    @contextmanager
    def around_task() -> Iterator[None]:
        model = executor.status.model
        if model is not None and not model.device.startswith("cpu"):
            executor.unload()
        try:
            yield
        finally:
            if engine.status.state is EngineState.READY:
                engine.unload()

    return Lane(
        executor,
        executor.name,
        is_ready=lambda: executor.is_ready,
        takes=lambda entry: is_first or isinstance(entry, Job),
        around_task=around_task,
        is_endable=True,
    )
