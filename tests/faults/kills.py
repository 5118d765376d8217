"""Kills at random moments, counted: for the test of a few and the benchmark of many."""

import random
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from PIL import Image

from tests.faults.server import Refused, TinyServer

BODY: dict[str, Any] = {"width": 64, "height": 64, "steps": 3, "n_iter": 5, "save_images": True, "send_images": False}
GONE = (OSError, HTTPException, Refused)
ALL_DONE_S = 300.0
IMAGES = (
    "SELECT task_id, json_extract(image.value, '$.path'), json_extract(image.value, '$.key') FROM jobs, "
    "json_each(jobs.outcome, '$.images') AS image"
)


@dataclass
class Found:
    """What was seen over all kills; all but the first four have to be 0."""

    kills: int
    jobs: int = 0  # that the server had accepted
    images: int = 0  # files on the disk
    killed_while_running: int = 0
    jobs_lost: int = 0  # accepted and not in the record
    jobs_not_done: int = 0  # when the last server had worked off the line
    images_lost: int = 0  # that a job should have and the disk does not
    images_doubled: int = 0  # files beyond one for each image
    images_damaged: int = 0
    seeds_changed: int = 0  # jobs whose seed is another one than at the first look
    not_in_history: int = 0  # files that the history does not know

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost and nothing was made twice."""
        lost = self.jobs_lost + self.jobs_not_done + self.images_lost + self.images_doubled + self.images_damaged
        return lost + self.seeds_changed + self.not_in_history == 0


def kill_at_random(data: Path, kills: int, jobs: int, seed: int = 5) -> Found:
    """Spread `jobs` over so many starts of a server on `data`, kill each with signal 9, and let the last one finish."""
    draw = random.Random(seed)
    found = Found(kills)
    seeds: dict[str, object] = {}
    tasks = [f"job-{number}" for number in range(jobs)]
    left = list(tasks)
    for number in range(kills):
        server = TinyServer(data)
        server.wait_until_up()
        due = -(-jobs * (number + 1) // max(kills // 2, 1)) - (
            jobs - len(left)
        )  # all are accepted by half of the kills
        now, left = left[: max(due, 0)], left[max(due, 0) :]
        with ThreadPoolExecutor(max(len(now), 1)) as clients:
            for task in now:
                clients.submit(submit, server, task)
            time.sleep(draw.uniform(0.02, 0.4))
            waiting = set(server.ask("/internal/pending-tasks")["tasks"])
            left = [task for task in now if task not in waiting and task not in rows(data)] + left
            found.killed_while_running += bool(waiting)
            server.kill()
        for name, drawn in asked(data, "SELECT task_id, json_extract(request, '$.seed') FROM jobs"):
            found.seeds_changed += seeds.setdefault(str(name), drawn) != drawn
    server = TinyServer(data)
    server.wait_until_up()
    with ThreadPoolExecutor(max(len(left), 1)) as clients:
        for task in left:
            clients.submit(submit, server, task)
    until = time.monotonic() + ALL_DONE_S
    while server.ask("/internal/pending-tasks")["size"] and time.monotonic() < until:
        time.sleep(0.05)
    server.kill()
    states = rows(data)
    found.jobs = len(states)
    found.jobs_lost = len(set(tasks) - set(states))
    found.jobs_not_done = sum(state != "done" for state in states.values())
    files = set((data / "outputs").rglob("*.png"))
    found.images = len(files)
    recorded = {(str(task), str(key)): Path(str(path)) for task, path, key in asked(data, IMAGES)}
    wanted = {(task, f"0/{number}/0") for task in states for number in range(BODY["n_iter"])}
    found.images_lost = sum(key not in recorded or recorded[key] not in files for key in wanted)
    found.images_doubled = len(files - set(recorded.values())) + len(set(recorded) - wanted)
    found.images_damaged = sum(not _is_whole(path) for path in files)
    found.not_in_history = len(
        files - {Path(str(path)) for (path,) in asked(data, "SELECT path FROM entries", "history")}
    )
    return found


def _is_whole(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, SyntaxError):
        return False
    return True


def submit(server: TinyServer, task_id: str, **changed: object) -> None:
    """Submit and wait for the answer, or for the server's end."""
    with suppress(*GONE):
        server.ask("/sdapi/v1/txt2img", {**BODY, "prompt": task_id, "force_task_id": task_id, **changed}, timeout_s=600)


def rows(data: Path) -> dict[str, str]:
    """The state of each job as the record has it."""
    return {str(task): str(state) for task, state in asked(data, "SELECT task_id, status FROM jobs")}


def asked(data: Path, question: str, name: str = "jobs") -> list[tuple[object, ...]]:
    """What a file of the data folder says."""
    with sqlite3.connect(data / f"{name}.sqlite") as database:
        found = database.execute(question).fetchall()
    database.close()
    return found
