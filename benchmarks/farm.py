"""The queue with 1 to 256 simulated workers: throughput against their number, and what the queue costs a job.

    python -m benchmarks.farm [--steps 20] [--step-ms 100] [--image-ms 300] [--workers 1,4,16,64,256]

Queue, record (SQLite on disk) and executors are the real ones; a worker only waits as long as measured steps take
(`--step-ms`, `--image-ms` for text, decoding and saving) and reports as a real one does, with a preview every fourth
step. `cpu_ms_per_job` is the CPU time of the server's process for each job, from submitting it to its end, with
following what its worker reports; `queue_cpu_ms_per_job` the same where lanes only wait and report an image, so that it
is the queue and its record alone. `efficiency` is the throughput as a part of what the workers could do at most. Four
jobs a worker, of three models and two users.
"""

import argparse
import queue
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.report import print_table, write_result
from modules.jobs.job import Job, JobStatus
from modules.jobs.lanes import Lane
from modules.jobs.line import Models, QueueOptions
from modules.jobs.store import JobStore
from modules.jobs.workers.executor import WorkerExecutor
from modules.jobs.workers.protocol import (
    Command,
    Happened,
    Happening,
    JobDone,
    Ready,
    Report,
    RunJob,
    Stop,
)
from modules.processing.record.output import Output
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, GenerationInfo, Result
from modules.processing.request.stages import Stage
from tests.queues import JobQueue

GOAL_MS = 5.0
JOBS_PER_WORKER = 4
PREVIEW_EVERY = 4


class Simulated:
    """A transport to nobody: says what a worker would say, when it would say it."""

    place = "simulated"

    def __init__(self, steps: int, step_s: float, image_s: float) -> None:
        self._steps, self._step_s, self._image_s = steps, step_s, image_s
        self._jobs: queue.SimpleQueue[RunJob | None] = queue.SimpleQueue()
        self._reports: list[tuple[float, Report]] = [(0.0, Ready(0, "CPU"))]

    def send(self, command: Command) -> None:
        if isinstance(command, RunJob):
            self._jobs.put(command)
        elif isinstance(command, Stop):
            self._jobs.put(None)

    def receive(self) -> Report:
        if not self._reports:
            job = self._jobs.get()
            if job is None:
                raise EOFError
            self._reports = self._reports_of(job)
        at, report = self._reports.pop(0)
        time.sleep(max(at - time.monotonic(), 0.0))
        return report

    def _reports_of(self, job: RunJob) -> list[tuple[float, Report]]:
        at = time.monotonic()
        preview = Image.new("RGB", (64, 64))
        found: list[tuple[float, Report]] = [
            (at, Happened(Happening.STAGE, (Stage.SAMPLE,))),
            (at, Happened(Happening.PLAN, (self._steps,))),
        ]
        for step in range(1, self._steps + 1):
            at += self._step_s
            found.append((at, Happened(Happening.STEP, (step,))))
            if step % PREVIEW_EVERY == 0:
                found.append((at, Happened(Happening.PREVIEW, (preview,))))
        at += self._image_s
        request = job.request
        image = GeneratedImage(preview, "an infotext", request.seed, request.subseed, key="0/0/0")
        found.append((at, Happened(Happening.FINISHED_IMAGE, (image,))))
        return [*found, (at, JobDone(result_of(request), ((image, 0),)))]

    def end(self) -> None:
        self._jobs.put(None)

    def cause(self) -> str:
        return "ended"


def result_of(request: GenerationRequest) -> Result:
    """Without its images."""
    info = GenerationInfo(
        prompts=(request.prompt,),
        negative_prompts=("",),
        seeds=(request.seed,),
        subseeds=(request.subseed,),
        subseed_strength=0.0,
        width=512,
        height=512,
        sampler=request.sampler,
        scheduler="Automatic",
        cfg_scale=7.0,
        steps=request.steps,
        batch_size=1,
        checkpoint_name="x",
        checkpoint_hash="",
        vae_name=None,
        vae_hash=None,
        seed_resize_from_width=0,
        seed_resize_from_height=0,
        denoising_strength=None,
        extra_params={},
        infotexts=("an infotext",),
        styles=(),
        job_timestamp="",
        clip_skip=1,
        version="",
    )
    return Result(images=(), info=info)


class Waiting:
    """An executor that waits as long as a job takes, and reports its image: no worker to follow."""

    def __init__(self, job_s: float) -> None:
        self._job_s = job_s

    def run(self, job: Job) -> Result:
        time.sleep(self._job_s)
        image = GeneratedImage(Image.new("RGB", (8, 8)), "an infotext", job.request.seed, 0, key="0/0/0")
        job.finished_image(image)
        return replace(result_of(job.request), images=(image,))

    def close(self) -> None:
        """Holds nothing."""


def measure(workers: int, steps: int, step_s: float, image_s: float) -> dict[str, Any]:
    """One number of workers."""
    job_s = steps * step_s + image_s
    bare = [Lane(Waiting(job_s), f"w{index}") for index in range(workers)]
    queue_s = worked(bare, steps)["cpu_s"]
    executors = [
        WorkerExecutor(f"w{index}", lambda: Simulated(steps, step_s, image_s), Output(Path()))
        for index in range(workers)
    ]
    lanes = [Lane(one, one.name, lambda one=one: one.is_ready, is_endable=True) for one in executors]  # type: ignore[misc]
    for executor in executors:
        executor.start()
    while not all(executor.is_ready for executor in executors):
        time.sleep(0.01)
    found = worked(lanes, steps)
    jobs, wall_s = found["jobs"], found["wall_s"]
    return {
        "workers": workers,
        "jobs": jobs,
        "done": found["done"],
        "wall_s": round(wall_s, 2),
        "submitting_ms_per_job": round(1000 * found["submitted_s"] / jobs, 3),
        "jobs_per_s": round(jobs / wall_s, 2),
        "efficiency": round(jobs * job_s / workers / wall_s, 3),
        "queue_cpu_ms_per_job": round(1000 * queue_s / jobs, 3),
        "cpu_ms_per_job": round(1000 * found["cpu_s"] / jobs, 3),
    }


def worked(lanes: list[Lane], steps: int) -> dict[str, Any]:
    """Put four jobs a lane in line, then have them worked off."""
    jobs = len(lanes) * JOBS_PER_WORKER
    with tempfile.TemporaryDirectory() as folder:
        models = Models(of=lambda request: (f"model-{request.seed % 3}", ()))
        store = JobStore(Path(folder) / "jobs.sqlite")
        line = JobQueue(lanes, store, lambda: QueueOptions(max_waiting=jobs), models)
        request = GenerationRequest(prompt="a cat on a wall", steps=steps)
        began, cpu = time.monotonic(), time.process_time()
        line.pause()
        line.start()
        entries = [
            line.submit(replace(request, seed=number, user=f"user-{number % 2}"), preview_every=PREVIEW_EVERY)
            for number in range(jobs)
        ]
        submitted = time.monotonic()
        line.pause(False)
        for entry in entries:
            entry.wait()
        ended, cpu_s = time.monotonic(), time.process_time() - cpu
        done = sum(entry.status is JobStatus.DONE for entry in entries)
        line.close()
    return {
        "jobs": jobs,
        "done": done,
        "submitted_s": submitted - began,
        "wall_s": ended - submitted,
        "cpu_s": cpu_s,
    }


def main() -> int:
    """Measure, print, write; 1 where jobs were lost or the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--image-ms", type=float, default=300.0)
    parser.add_argument("--workers", default="1,4,16,64,256")
    arguments = parser.parse_args()
    counts = [int(text) for text in arguments.workers.split(",")]
    times = arguments.steps, arguments.step_ms / 1000, arguments.image_ms / 1000
    rows = [measure(count, *times) for count in counts]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    met = rows[-1]["queue_cpu_ms_per_job"] < GOAL_MS and all(row["done"] == row["jobs"] for row in rows)
    asked = {"steps": arguments.steps, "step_ms": arguments.step_ms, "image_ms": arguments.image_ms}
    write_result("farm", {**asked, "rows": rows, "goal_queue_cpu_ms_per_job": GOAL_MS, "met": met})
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
