"""Whose work is whose: a job is its user's, is saved in their folder, and is shown to them and to admins only."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from modules.access.roles import Identity, NotAllowedError
from modules.errors import UnknownNameError
from modules.jobs.job import Entry, Job
from modules.jobs.queue import JobQueue
from modules.jobs.store import JobRecord
from modules.jobs.tasks import Task
from modules.processing.request import GenerationRequest
from modules.settings.definitions import SETTINGS
from modules.settings.values import Settings

FOR_ADMINS = ("saving-paths", "saving-to-dirs", "system", "API")
"""Sections of settings that only admins change, for one job too: where files go, and what the program does."""
FOR_ADMINS_TOO = ("font",)  # names a file of the server's machine
FOLDERS = (
    *("outdir_samples", "outdir_txt2img_samples", "outdir_img2img_samples", "outdir_extras_samples"),
    *("outdir_grids", "outdir_txt2img_grids", "outdir_img2img_grids", "outdir_init_images", "outdir_save"),
)


def claimed(request: GenerationRequest, identity: Identity, current: Settings | None = None) -> GenerationRequest:
    """The request as this user's: with their name, and into their folder. Raises `NotAllowedError` for settings of
    their own that only admins change. `current`: the settings now, for a request from a record, which was somebody's
    already."""
    check_overrides(request.override_settings, identity)
    settings = request.settings
    if current is not None and identity.has_folder:
        settings = settings.with_changes({key: current[key] for key in FOLDERS})
    settings = own_folders(settings, identity)
    return replace(request, user=identity.name, settings=settings)


def check_overrides(overrides: Mapping[str, Any], identity: Identity) -> None:
    """Raise `NotAllowedError` for settings of one job that this user may not change."""
    if identity.is_admin:
        return
    for key in overrides:
        if key in FOR_ADMINS_TOO or (key in SETTINGS and SETTINGS.get(key).section.id in FOR_ADMINS):
            raise NotAllowedError(
                f"The setting {key} is for admins, in override_settings too. Leave it out; everything else of the "
                "request may stay."
            )


def own_folders(settings: Settings, identity: Identity) -> Settings:
    """The settings with all output folders ending in this user's name, where users have folders of their own."""
    if not identity.has_folder:
        return settings
    found = {key: str(settings[key]).rstrip("/\\") for key in FOLDERS}
    return settings.with_changes({key: f"{folder}/{identity.name}" for key, folder in found.items() if folder})


@dataclass(frozen=True)
class OwnQueue:
    """The queue as one user sees it: only their work, everybody's for an admin. What is somebody else's is unknown."""

    queue: JobQueue
    identity: Identity

    def owns(self, entry: Entry | JobRecord) -> bool:
        """Whether work is this user's to see and to change."""
        return self.identity.may_change(entry.standing.user)

    def get(self, task_id: str) -> Job:
        """As `JobQueue.get`."""
        job = self.queue.get(task_id)
        self._check(job)
        return job

    def find(self, task_id: str) -> Job | None:
        """As `JobQueue.find`."""
        job = self.queue.find(task_id)
        return job if job is not None and self.owns(job) else None

    def find_entry(self, task_id: str) -> Entry | None:
        """As `JobQueue.find_entry`."""
        entry = self.queue.find_entry(task_id)
        return entry if entry is not None and self.owns(entry) else None

    def task(self, task_id: str) -> Task:
        """As `JobQueue.task`."""
        task = self.queue.task(task_id)
        if not self.owns(task):
            raise UnknownNameError(f"No task has the id {task_id!r}; it may have ended long ago.")
        return task

    def tasks(self, kind: str | None = None) -> tuple[Task, ...]:
        """As `JobQueue.tasks`."""
        return tuple(task for task in self.queue.tasks(kind) if self.owns(task))

    def record(self, task_id: str) -> JobRecord:
        """As `JobQueue.record`."""
        record = self.queue.record(task_id)
        self._check(record)
        return record

    def require(self, task_id: str) -> None:
        """Raise `UnknownNameError` for work that this user may not change; every change by task id asks this first."""
        entry = self.queue.find_entry(task_id)
        self._check(entry if entry is not None else self.queue.record(task_id))

    @property
    def running_entries(self) -> tuple[Entry, ...]:
        """As `JobQueue.running_entries`."""
        return tuple(entry for entry in self.queue.running_entries if self.owns(entry))

    @property
    def running(self) -> Job | None:
        """As `JobQueue.running`."""
        return next((entry for entry in self.running_entries if isinstance(entry, Job)), None)

    @property
    def running_task(self) -> Task | None:
        """As `JobQueue.running_task`."""
        entries = self.running_entries
        return next((entry for entry in entries if isinstance(entry, Task) and entry.makes_images), None)

    @property
    def waiting(self) -> tuple[Entry, ...]:
        """This user's work that waits."""
        running = self.queue.running_entries
        return tuple(entry for entry in self.pending if entry not in running)

    @property
    def pending(self) -> tuple[Entry, ...]:
        """As `JobQueue.pending`."""
        return tuple(entry for entry in self.queue.pending if self.owns(entry))

    @property
    def waiting_count(self) -> int:
        """As `JobQueue.waiting_count`."""
        if self.identity.is_admin:
            return self.queue.waiting_count
        return len(self.waiting)

    @property
    def user(self) -> str | None:
        """Whose records are asked for; None: everybody's."""
        return None if self.identity.is_admin else self.identity.name

    def line(self, limit: int) -> tuple[Entry, ...]:
        """As `JobQueue.line`."""
        if self.identity.is_admin:
            return self.queue.line(limit)
        everything = self.queue.line(max(limit, self.queue.waiting_count))
        return tuple(entry for entry in everything if self.owns(entry))[:limit]

    def interrupt(self, task_id: str | None = None, after_batch: bool = False, why: str = "interrupted") -> None:
        """As `JobQueue.interrupt`; nothing happens to the work of others."""
        if self.identity.is_admin:
            self.queue.interrupt(task_id, after_batch, why)
            return
        task = self.running_task
        jobs: list[Entry | None] = [entry for entry in self.running_entries if isinstance(entry, Job)]
        found = self.find_entry(task_id) if task_id else None
        chosen = [found] if task_id else jobs or [task]
        for entry in chosen:
            if entry is not None:
                self.queue.interrupt(entry.task_id, after_batch, why)

    def skip(self) -> None:
        """As `JobQueue.skip`."""
        for entry in self.running_entries:
            if isinstance(entry, Job):
                entry.skip()

    def clear(self) -> int:
        """As `JobQueue.clear`, for this user's work."""
        if self.identity.is_admin:
            return self.queue.clear()
        waiting = self.waiting
        for entry in waiting:
            self.queue.interrupt(entry.task_id, why="taken out of the line")
        return len(waiting)

    def move_before(self, task_id: str, other: str | None) -> None:
        """As `JobQueue.move_before`, among this user's work."""
        self.require(task_id)
        if other is not None and not self.identity.is_admin:
            self.require(other)
        self.queue.move_before(task_id, other)

    def _check(self, entry: Entry | JobRecord) -> None:
        if not self.owns(entry):
            raise UnknownNameError(f"No job has the task id {entry.task_id!r}; it may have finished long ago.")
