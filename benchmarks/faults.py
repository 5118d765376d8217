"""What 200 `kill -9` at random moments lose or double over a queue of 50 jobs, and what the queue costs a job.

Run `python -m benchmarks.faults [KILLS [JOBS]]`. The server's queue, record, history and files are real; its model
computes nothing. The cost is that of recording, ordering and telling: jobs of one image without a file, that takes no
time to make, one after the other.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from PIL import Image

from benchmarks import long_line, worker_kills
from benchmarks.report import print_table, write_result
from modules.history.service import HistoryService
from modules.jobs.job import Job
from modules.jobs.store import JobStore
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, Result
from tests.fakes import result_of
from tests.faults.kills import kill_at_random
from tests.queues import JobQueue

KILLS, JOBS = 200, 50
TIMED = 300


class Instant:
    """An executor that gives the same image file to each job."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, job: Job) -> Result:
        """No time at all."""
        image = GeneratedImage(Image.new("RGB", (8, 8)), "x", 1, 1, self.path, key="0/0/0")
        job.saving(image, self.path, "0" * 64)
        job.finished_image(image)
        return result_of(job.request, [image], False)

    def close(self) -> None:
        """Holds nothing."""


def overhead_ms(folder: Path) -> float:
    """The median time from submit to the end of a job that takes no time."""
    path = folder / "image.png"
    Image.new("RGB", (8, 8)).save(path)
    history = HistoryService.open(folder / "history.sqlite", folder / "thumbnails.sqlite", folder / "trash")
    queue = JobQueue(Instant(path), JobStore(folder / "jobs.sqlite"))
    queue.images.listen(history)
    queue.start()
    times = []
    for number in range(TIMED):
        began = time.perf_counter()
        queue.submit(GenerationRequest(prompt=f"job {number}")).wait(10)
        times.append((time.perf_counter() - began) * 1000)
    queue.close()
    history.close()
    return round(statistics.median(times), 2)


def main() -> None:
    """Kill, time, print, write."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else JOBS
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        line = long_line.measured(Path(folder) / "line", long_line.JOBS)
        cost = overhead_ms(Path(folder))
        found = kill_at_random(Path(folder) / "data", kills, jobs)
        workers = worker_kills.measured(Path(folder) / "workers", worker_kills.KILLS)
    counts = {**asdict(found), "queue_overhead_per_job_ms": cost, "long_line": line, "workers": workers}
    print_table(["counted", ""], [(name.replace("_", " "), str(count)) for name, count in counts.items()])
    met = found.is_whole and workers["is_whole"] and cost < 10
    write_result("faults", {**counts, "seconds": time.monotonic() - began, "met": met})


if __name__ == "__main__":
    main()
