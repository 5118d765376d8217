"""A whole queue in one object, as tests and benchmarks use it: the line, who works it off, and what a restart does."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modules.jobs.dispatch import Dispatcher
from modules.jobs.job import Executor
from modules.jobs.lanes import Lane
from modules.jobs.line import Line, Models, QueueOptions
from modules.jobs.restart import Restart
from modules.jobs.store import JobStore
from modules.jobs.tasks import Outcome, Product, Task, TaskSpec
from modules.processing.record.recordings import Recordings


class JobQueue(Line):
    """A line with its dispatcher: one lane for an executor, or the lanes that are given."""

    def __init__(
        self,
        executor: Executor | Sequence[Lane],
        store: JobStore,
        options: Callable[[], QueueOptions] = QueueOptions,
        models: Models | None = None,
        recordings: Recordings | None = None,
    ) -> None:
        super().__init__(store, options, models, recordings)
        self.lanes = tuple(executor) if isinstance(executor, Sequence) else (Lane(executor),)
        self.dispatcher = Dispatcher(self, self.lanes)

    def start(self) -> None:
        self.dispatcher.start()

    def close(self, timeout_s: float = 120.0) -> None:
        self.dispatcher.close(timeout_s)

    def restore(self) -> int:
        return Restart(self).restore()

    def submit_task(
        self,
        type: str,
        title: str,
        work: Callable[[Task], Outcome],
        request: Mapping[str, Any] | None = None,
        *,
        makes_images: bool = False,
        product: Product | None = None,
        user: str = "",
    ) -> Task:
        return self.submit_spec(TaskSpec(type, title, work, request or {}, makes_images, product, user))
