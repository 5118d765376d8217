"""What a long queue costs: 10,000 waiting jobs of several users and models, for the page, the API and a restart.

Run `python -m benchmarks.queue [JOBS]`. Nothing is computed; record, order and replies are real. Seconds are CPU
seconds of this process, so that a busy machine changes little.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.report import print_table, write_result
from modules.jobs.line import Models, QueueOptions
from modules.jobs.store import JobStore
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings
from tests.queues import JobQueue

JOBS = 10_000
USERS, MODELS = 5, 4
ASKS = 5
GOAL_MS = 50.0  # of what a page asks once a second


class Nothing:
    """An executor of a queue that is never started."""

    def run(self, job: object) -> None:
        """Is not called."""
        raise AssertionError

    def close(self) -> None:
        """Holds nothing."""


@dataclass
class Timed:
    """Milliseconds of CPU time by what was done."""

    ms: dict[str, float]

    def take(self, name: str, work: Callable[[], object], times: int = ASKS) -> None:
        """The mean of some times."""
        began = time.process_time()
        for _ in range(times):
            work()
        self.ms[name] = round((time.process_time() - began) / times * 1000, 2)


def queue_on(path: Path, jobs: int) -> JobQueue:
    """A queue that is not started and takes so many jobs."""
    models = Models(of=lambda request: (request.settings.stable_diffusion.sd_model_checkpoint, ()))
    return JobQueue(Nothing(), JobStore(path), lambda: QueueOptions(max_waiting=jobs + 10), models)  # type: ignore[arg-type]


def request(number: int) -> GenerationRequest:
    """One of many."""
    settings = Settings().with_changes({"sd_model_checkpoint": f"model-{number % MODELS}.safetensors"})
    return GenerationRequest(prompt=f"image {number}, " * 10, user=f"user{number % USERS}", settings=settings)


def take_and_put_back(queue: JobQueue) -> None:
    """What a lane does to begin with the next."""
    entry = queue.turns.take(queue.lanes[0])
    assert entry is not None
    queue.turns.put_back(entry)


def measured(folder: Path, jobs: int) -> dict[str, float]:
    """All numbers, in milliseconds of CPU time."""
    timed = Timed({})
    queue = queue_on(folder / "jobs.sqlite", jobs)
    requests = [request(number) for number in range(jobs)]
    began = time.process_time()
    for number, one in enumerate(requests):
        queue.submit(one, f"job-{number}")
    timed.ms["submit, each"] = round((time.process_time() - began) / jobs * 1000, 3)
    last = f"job-{jobs - 1}"
    timed.take("the first 100 in order", lambda: queue.first(100))
    timed.take("the first 500 in order", lambda: queue.first(500))
    timed.take("progress of the last", lambda: queue.progress(last))
    timed.take("take the next", lambda: take_and_put_back(queue))
    timed.take("run next", lambda: queue.run_next(last))
    timed.take("move to the end", lambda: queue.move_before(last, None))
    timed.take("edit", lambda: queue.change(last, lambda request: replace(request, steps=request.steps + 1)))
    queue.store.file.close()
    again = queue_on(folder / "jobs.sqlite", jobs)
    timed.take("take up after a restart", again.restore, times=1)
    timed.take("cancel all", again.clear, times=1)
    again.store.file.close()
    return timed.ms


def main() -> None:
    """Measure, print, write."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), jobs)
    print_table(["CPU time", "ms"], [(name, str(ms)) for name, ms in found.items()])
    shown = [found[name] for name in ("the first 100 in order", "progress of the last", "take the next", "run next")]
    write_result("queue", {"jobs": jobs, "ms": found, "met": max(shown) < GOAL_MS})


if __name__ == "__main__":
    main()
