"""All workers of a server: what the page shows of them, and the models that they hold in place of its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

from modules.errors import BusyError
from modules.jobs.job import Job
from modules.jobs.lanes import Lane
from modules.jobs.workers.executor import WorkerExecutor, WorkerFacts
from modules.jobs.workers.protocol import Question
from modules.models.files.hashing import HashProgress
from modules.processing.engine.engine import Engine
from modules.processing.engine.status import EngineState, EngineStatus
from modules.processing.memory_estimate.planner import Planned
from modules.processing.request.request import GenerationRequest
from modules.scripts.extension import Fault
from modules.settings.values import Settings
from modules.system.devices import Memory, main_memory_info

BEGINS_S = 60.0  # how long a question waits for a worker that begins


class Shown(Protocol):
    """A worker that can be begun and shown."""

    changed: Callable[[], object]

    @property
    def facts(self) -> WorkerFacts: ...

    def start(self) -> None:
        """Begin; returns at once."""


class ModelHost(Protocol):
    """Holder of the model that images are made with: the engine of this process, or workers."""

    @property
    def status(self) -> EngineStatus:
        """Where it stands; never waits."""

    @property
    def hashing(self) -> HashProgress | None:
        """How far the sha256 of a checkpoint is computed."""

    def request_load(self, wanted: str | None) -> None:
        """Load in the background; returns at once."""

    def unload(self) -> None:
        """Free the model; waits for a running image."""

    def reload(self) -> None:
        """Load again what was loaded or unloaded last; waits."""

    def measure_again(self) -> dict[str, dict[str, Any]]:
        """See `Engine.measure_again`."""

    def memory(self) -> dict[str, Memory]:
        """See `devices.memory_info`."""

    def list_embeddings(self) -> dict[str, dict[str, Any]]:
        """Textual inversion embeddings that are there now: "loaded" with their facts, "skipped" with the reason."""


class Workers:
    """`local` hold models of this program; `others` (other servers) only take jobs."""

    def __init__(
        self, local: Sequence[WorkerExecutor] = (), others: Sequence[Shown] = (), lanes: Sequence[Lane] = ()
    ) -> None:
        self.local = tuple(local)
        self.others = tuple(others)
        self.lanes = tuple(lanes)
        self._extension_facts: dict[str, tuple[tuple[Fault, ...], float]] = {}

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
        """Return that of the first that has a model, else of the first."""
        found = [worker.status for worker in self.local]
        return next((status for status in found if status.state is EngineState.READY), found[0])

    @property
    def hashing(self) -> HashProgress | None:
        return next((worker.hashing for worker in self.local if worker.hashing is not None), None)

    def request_load(self, wanted: str | None) -> None:
        for worker in self.local:
            worker.load(wanted)

    def unload(self) -> None:
        for worker in self.local:
            worker.unload()

    def reload(self) -> None:
        for worker in self.local:
            worker.ask(Question.RELOAD)

    def measure_again(self) -> dict[str, dict[str, Any]]:
        """Have each measure its device, one after the other: two on one device would measure each other."""
        found: dict[str, dict[str, Any]] = {}
        for worker in self.local:
            found |= worker.ask(Question.MEASURE)
        return found

    def change_settings(self, settings: Settings) -> None:
        """The settings are these now."""
        for worker in self.local:
            worker.change_settings(settings)

    def memory(self) -> dict[str, Memory]:
        """Return that of the first that answers; main memory while none does."""
        for worker in self.local:
            try:
                found: dict[str, Memory] = worker.ask(Question.MEMORY)
            except BusyError:
                continue
            return found
        return main_memory_info()

    def extension_facts(self) -> dict[str, tuple[tuple[Fault, ...], float]]:
        """Return what of extensions failed in any worker and what they cost an image, by name; of a worker that does
        not answer what it said before."""
        for worker in self.local:
            try:
                found: dict[str, tuple[tuple[Fault, ...], float]] = worker.ask(Question.EXTENSIONS)
            except BusyError:
                continue
            for name, (faults, image_s) in found.items():
                earlier = self._extension_facts.get(name, ((), 0.0))[0]
                self._extension_facts[name] = tuple(dict.fromkeys((*earlier, *faults))), image_s
        return self._extension_facts

    def list_embeddings(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.local[0].ask(Question.EMBEDDINGS, wait_s=BEGINS_S)
        return found

    def planned(self, request: GenerationRequest, available_bytes: int | None = None) -> Planned:
        """See `Planner`; by the first worker, for which is waited where it has only begun. Raises `BusyError`."""
        found: Planned = self.local[0].ask(Question.ESTIMATE, request, available_bytes, wait_s=BEGINS_S)
        return found

    def wakes(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when one can take a job, or no longer can."""
        for worker in (*self.local, *self.others):
            worker.changed = wake


def worker_lane(executor: WorkerExecutor, engine: Engine, does_tasks: bool, is_first: bool) -> Lane:
    """The lane of a worker. Where workers do no tasks, the first lane takes them and they run in the server's process,
    whose engine frees its model afterwards."""

    @contextmanager
    def around_task() -> Iterator[None]:
        try:
            yield
        finally:
            if engine.status.state is EngineState.READY:
                engine.unload()

    return Lane(
        executor,
        executor.name,
        is_ready=lambda: executor.is_ready,
        takes=lambda entry: does_tasks or is_first or isinstance(entry, Job),
        around_task=nullcontext if does_tasks else around_task,
        is_endable=True,
    )
