"""Work that is remembered by its task id: all that waits and runs, and the last that ended, with its images in memory.

Every question takes who asks: work is its user's, and what is somebody else's is unknown.
"""

from collections import OrderedDict
from contextlib import AbstractContextManager

from modules.access.roles import ANYBODY, Identity
from modules.errors import FeatherweightError, InvalidValueError, UnknownNameError
from modules.jobs.job import Entry, Job, JobStatus
from modules.jobs.tasks import Task

KEPT_ENTRIES, KEPT_AT_LEAST = 32, 8
"""How much ended work is remembered, for a page that comes back; and how much of it whatever its images take."""
KEPT_BYTES = 64 << 20
"""Limit of the memory for the images of all remembered work: 16 of 1024 px."""


class Known:
    """Entries by task id, in the order in which they came. `lock` is the line's."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    def add(self, entry: Entry) -> None:
        """Remember. Raises `InvalidValueError` while work of this task id waits or runs."""
        with self._lock:
            known = self._entries.get(entry.task_id)
            if known is not None and not known.status.is_final:
                raise InvalidValueError(
                    f"A job with the task id {entry.task_id!r} waits or runs; choose another id, or leave it out to "
                    "get one."
                )
            self._entries[entry.task_id] = entry
            self._entries.move_to_end(entry.task_id)

    def remove(self, entry: Entry) -> None:
        """Forget one that could not be put in line."""
        with self._lock:
            del self._entries[entry.task_id]

    def drop_task(self, task_id: str) -> None:
        """Forget a task that has ended; nothing where there is none. Image jobs stay: pages may still show them."""
        with self._lock:
            entry = self._entries.get(task_id)
            if isinstance(entry, Task) and entry.status.is_final:
                del self._entries[task_id]

    def forget(self) -> None:
        """Forget the oldest of what has ended: beyond `KEPT_ENTRIES`, and where the images of newer work take
        `KEPT_BYTES` already."""
        with self._lock:
            ended = [entry for entry in reversed(self._entries.values()) if entry.status.is_final]
            taken = 0
            for number, entry in enumerate(ended):
                taken += _image_bytes(entry)
                if number >= KEPT_ENTRIES or (number >= KEPT_AT_LEAST and taken > KEPT_BYTES):
                    del self._entries[entry.task_id]

    def find_entry(self, task_id: str, who: Identity = ANYBODY) -> Entry | None:
        """Any work of this id; None where there is none."""
        with self._lock:
            entry = self._entries.get(task_id)
        return entry if entry is not None and who.may_change(entry.standing.user) else None

    def find(self, task_id: str, who: Identity = ANYBODY) -> Job | None:
        """The image job of this id; None where there is none."""
        entry = self.find_entry(task_id, who)
        return entry if isinstance(entry, Job) else None

    def get(self, task_id: str, who: Identity = ANYBODY) -> Job:
        """The image job of this id; raises `UnknownNameError`."""
        job = self.find(task_id, who)
        if job is None:
            raise UnknownNameError(f"No job has the task id {task_id!r}; it may have finished long ago.")
        return job

    def task(self, task_id: str, who: Identity = ANYBODY) -> Task:
        """The task of this id; raises `UnknownNameError`."""
        entry = self.find_entry(task_id, who)
        if not isinstance(entry, Task):
            raise UnknownNameError(f"No task has the id {task_id!r}; it may have ended long ago.")
        return entry

    def tasks(self, type: str | None = None, who: Identity = ANYBODY) -> tuple[Task, ...]:
        """The tasks, the newest first; of one type, or all."""
        with self._lock:
            tasks = [entry for entry in reversed(self._entries.values()) if isinstance(entry, Task)]
        return tuple(task for task in tasks if type in (None, task.type) and who.may_change(task.standing.user))

    def last_done(self) -> Job | None:
        """The image job that ended last with a result; None where there is none."""
        ended = (JobStatus.DONE, JobStatus.INTERRUPTED)
        with self._lock:
            jobs = (entry for entry in reversed(self._entries.values()) if isinstance(entry, Job))
            return next((job for job in jobs if job.status in ended and job.has_result), None)


def _image_bytes(entry: Entry) -> int:
    """Return how much memory the images of ended work take; Pillow has four bytes for a pixel."""
    if not isinstance(entry, Job):
        return 0
    try:
        images = entry.known_images()
    except FeatherweightError:  # its own: it failed, perhaps with a result that could not be recorded
        images = entry.images
    return sum(4 * one.image.width * one.image.height for one in images)
