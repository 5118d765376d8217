"""Kills at random moments, counted: for the test of a few and the benchmark of a hundred."""

import random
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from PIL import Image

from tests.faults.server import Refused, TinyServer

BODY = {"width": 64, "height": 64, "steps": 3, "n_iter": 3, "save_images": True, "send_images": False}
GONE = (OSError, HTTPException, Refused)
JOBS_AT_ONCE = 4


@dataclass
class Found:
    """What was seen over all kills; the last five have to be 0, and `loose` at most one for each kill."""

    kills: int
    jobs: int = 0  # that the server knew of
    answered: int = 0
    images: int = 0  # files on the disk
    unfinished_named: int = 0  # jobs that the last start offered for repeating
    loose: int = 0  # images on the disk that the record does not name: it would have been told in the next moment
    answered_lost: int = 0  # answered jobs that were not done in the record
    unnamed: int = 0  # jobs that were neither done nor named after a start
    accepted_lost: int = 0  # jobs that stood in the line and are not in the record
    images_lost: int = 0  # that the record names and the disk does not have
    images_damaged: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost."""
        lost = self.answered_lost + self.unnamed + self.accepted_lost + self.images_lost + self.images_damaged
        return lost == 0 and self.loose <= self.kills


def kill_at_random(data: Path, kills: int, seed: int = 5) -> Found:
    """So often: start a server on `data`, give it jobs, kill it with signal 9, look at what the next start knows."""
    draw = random.Random(seed)
    found = Found(kills)
    answered: set[str] = set()
    accepted: set[str] = set()
    for number in range(kills + 1):
        server = TinyServer(data)
        server.wait_until_up()
        named = {record["task_id"] for record in server.ask("/internal/unfinished")}
        states = rows(data)
        ended = {task_id for task_id, state in states.items() if state == "done"}
        found.answered_lost += len(answered - ended)
        found.unnamed += len(set(states) - ended - named) + len(named & ended)
        found.accepted_lost += len(accepted - set(states))
        if number == kills:
            server.kill()
            break
        tasks = [f"{number}-{task}" for task in range(JOBS_AT_ONCE)]
        with ThreadPoolExecutor(len(tasks)) as clients:
            replies = {task: clients.submit(submit, server, task) for task in tasks}
            time.sleep(draw.uniform(0.02, 0.6))
            accepted |= set(server.ask("/internal/pending-tasks")["tasks"])
            server.kill()
        answered |= {task for task, reply in replies.items() if reply.result()}
    recorded = images_of_the_record(data)
    files = set((data / "outputs").rglob("*.png"))
    found.jobs, found.answered, found.images = len(states), len(answered), len(files)
    found.unfinished_named = len(named)
    found.images_lost, found.loose = len(recorded - files), len(files - recorded)
    found.images_damaged = sum(not _is_whole(path) for path in files)
    return found


def _is_whole(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, SyntaxError):
        return False
    return True


def submit(server: TinyServer, task_id: str, **changed: object) -> bool:
    """Submit and wait; whether the answer came."""
    try:
        server.ask("/sdapi/v1/txt2img", {**BODY, "prompt": task_id, "force_task_id": task_id, **changed})
    except GONE:
        return False
    return True


def rows(data: Path) -> dict[str, str]:
    """The state of each job as the record has it."""
    with sqlite3.connect(data / "jobs.sqlite") as database:
        found = dict(database.execute("SELECT task_id, status FROM jobs").fetchall())
    database.close()
    return found


def images_of_the_record(data: Path) -> set[Path]:
    with sqlite3.connect(data / "jobs.sqlite") as database:
        found = database.execute(
            "SELECT json_extract(image.value, '$.path') FROM jobs, json_each(jobs.outcome, '$.images') AS image "
            "WHERE jobs.kind = 'txt2img' AND jobs.outcome IS NOT NULL"
        ).fetchall()
    database.close()
    return {Path(path) for (path,) in found}
