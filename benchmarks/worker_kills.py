"""What `kill -9` of the worker process at 50 random moments loses or doubles: jobs are made again, images are not.

Part of `python -m benchmarks.faults`; alone `python -m benchmarks.worker_kills [KILLS]`. The server is whole and
computes with the tiny checkpoint of the tests; its one worker is killed while jobs of several images wait and run.
"""

import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from benchmarks.long_run import Server, body_of
from benchmarks.report import print_table, read_result, write_result
from modules.images.metadata import read_metadata

KILLS, IMAGES_PER_JOB, DONE_S = 50, 4, 600.0
BACK_S = 200.0  # each kill without a finished job doubles the time until the next start, up to a minute
SUBMIT = "/agent-scheduler/v1/queue/txt2img"


def measured(folder: Path, kills: int) -> dict[str, Any]:
    """Counts over all kills; `is_whole` where nothing was lost, doubled or left undone."""
    data = folder / "data"
    data.mkdir(parents=True)
    options = {"queue_retries": kills, "queue_limit": 10_000}
    (data / "config.json").write_text(json.dumps(options), encoding="utf-8")
    server = Server(data, ("--nowebui", "--workers", "1"))
    draw, tasks = random.Random(7), list[str]()
    running = 0
    try:
        for number in range(kills):
            for seed in (number * 10, number * 10 + 5):
                tasks.append(_submit(server, seed))
            worker = _worker(server)
            time.sleep(draw.uniform(0.1, 6.0))  # while it loads the model, computes, saves, or has nothing to do
            running += json.loads(server.ask("/internal/pending-tasks")[1])["size"] > 0
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        until = time.monotonic() + DONE_S
        while json.loads(server.ask("/internal/pending-tasks")[1])["size"] and time.monotonic() < until:
            time.sleep(0.2)
    finally:
        server.process.terminate()
        server.process.wait(30)
    return {"kills": kills, "jobs": len(tasks), "killed_while_running": running, **_counted(data, tasks)}


def _submit(server: Server, seed: int) -> str:
    body = body_of(seed, n_iter=IMAGES_PER_JOB, save_images=True)
    status, text = server.ask(SUBMIT, body)
    if status != 200:
        raise RuntimeError(f"a job was refused: {text[:300]!r}")
    return str(json.loads(text)["task_id"])


def _worker(server: Server) -> int:
    """The process id of the worker, once it is there again."""
    until = time.monotonic() + BACK_S
    while time.monotonic() < until:
        (worker,) = json.loads(server.ask("/featherweight/v1/workers")[1])
        words = str(worker["place"]).split()
        if len(words) > 1 and words[1].strip(",").isdigit() and worker["state"] != "starting":
            return int(words[1].strip(","))
        time.sleep(0.05)
    raise RuntimeError(f"the worker did not come back within {BACK_S:.0f} s")


def _counted(data: Path, tasks: list[str]) -> dict[str, Any]:
    with closing(sqlite3.connect(data / "jobs.sqlite")) as database:
        states = dict(database.execute("SELECT task_id, status FROM jobs"))
    files = sorted((data / "outputs").rglob("*.png"))
    seeds = Counter(
        (read_metadata(path.read_bytes())[0] or "").partition("Seed: ")[2].partition(",")[0] for path in files
    )
    found = {
        "jobs_lost": len(set(tasks) - set(states)),
        "jobs_not_done": sum(states.get(task) != "done" for task in tasks),
        "images_lost": max(0, len(tasks) * IMAGES_PER_JOB - len(files)),
        "images_doubled": sum(count - 1 for count in seeds.values()),
    }
    return {**found, "is_whole": not any(found.values())}


def main() -> None:
    """Kill, count, print, write."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), kills)
    print_table(["counted", ""], [(name.replace("_", " "), str(count)) for name, count in found.items()])
    write_result("faults", {**read_result("faults"), "workers": found})


if __name__ == "__main__":
    main()
