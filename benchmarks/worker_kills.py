"""What `kill -9` of a worker process at 50 random moments loses or doubles: jobs are made again, images are not.

Part of `python -m benchmarks.faults`; alone `python -m benchmarks.worker_kills [KILLS]`. Process, protocol, queue,
record and files are real; the worker's model draws plain images, step by step. Each kill hits work that waits and runs.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.report import print_table, read_result, write_result
from modules.jobs.job import JobStatus
from modules.jobs.lanes import Lane
from modules.jobs.line import QueueOptions
from modules.jobs.store import JobStore
from modules.jobs.workers.executor import ServerSide, WorkerExecutor, WorkerOptions
from modules.jobs.workers.process import ProcessTransport
from modules.processing.record.output import Output
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings
from tests.jobs.fake_worker import build
from tests.queues import JobQueue

KILLS, IMAGES_PER_JOB, STEPS = 50, 4, 5
BACK_S, DONE_S = 60.0, 600.0


def measured(folder: Path, kills: int) -> dict[str, Any]:
    """Counts over all kills; `is_whole` where nothing was lost, doubled or left undone."""
    folder.mkdir(parents=True)
    worker = WorkerExecutor(
        "worker-1",
        partial(ProcessTransport, "worker-1", build, folder),
        Output(folder),
        WorkerOptions,
        ServerSide(settings=Settings),
        backoff_s=0.01,
    )
    lane = Lane(worker, "worker-1", lambda: worker.is_ready, is_endable=True)
    queue = JobQueue([lane], JobStore(folder / "jobs.sqlite"), lambda: QueueOptions(10_000, retries=kills))
    worker.changed = queue.dispatcher.wake
    worker.start()
    queue.start()
    draw, jobs = random.Random(7), []
    running, pid = 0, 0
    for number in range(kills):
        for seed in (number * 10, number * 10 + 5):
            request = GenerationRequest(
                prompt="slow", seed=seed, steps=STEPS, width=16, height=16, batch_count=IMAGES_PER_JOB
            )
            jobs.append(queue.submit(request))
        pid = _process_of(worker, pid)
        time.sleep(draw.uniform(0.0, 2.5))  # one image takes a quarter of a second
        running += queue.running_job() is not None
        os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + DONE_S
    for job in jobs:
        job.wait(max(0.0, until - time.monotonic()))
    queue.close()
    files = sorted(folder.rglob("*.png"))
    seeds = Counter(_seed_of(path) for path in files)
    found = {
        "jobs_not_done": sum(job.status is not JobStatus.DONE for job in jobs),
        "images_lost": len(jobs) * IMAGES_PER_JOB - len(seeds),
        "images_doubled": sum(count - 1 for count in seeds.values()),
    }
    return {
        **{"kills": kills, "jobs": len(jobs), "images": len(files), "killed_while_running": running},
        **{"starts": worker.facts.restarts + 1, **found, "is_whole": not any(found.values())},
    }


def _process_of(worker: WorkerExecutor, killed: int) -> int:
    """The process id of the worker that has come after the one that was killed."""
    until = time.monotonic() + BACK_S
    while time.monotonic() < until:
        words = worker.facts.place.replace(",", "").split()
        if worker.is_ready and len(words) > 1 and int(words[1]) != killed:
            return int(words[1])
        time.sleep(0.01)
    raise RuntimeError(f"the worker did not come back within {BACK_S:.0f} s")


def _seed_of(path: Path) -> str:
    """The seed in a file; raises where it is no whole image."""
    with Image.open(path) as image:
        image.load()
        return str(image.info["parameters"]).partition("Seed: ")[2]


def main() -> None:
    """Kill, count, print, write."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder) / "data", kills)
    print_table(["counted", ""], [(name.replace("_", " "), str(count)) for name, count in found.items()])
    write_result("faults", {**read_result("faults"), "workers": found})


if __name__ == "__main__":
    main()
