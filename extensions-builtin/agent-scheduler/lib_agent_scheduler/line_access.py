"""The line of jobs as the routes use it. Each call acts for the user who sent the request, who sees and changes their
own work, an admin everybody's; who may call a route at all is said at the route (`script_callbacks.open_to`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import Request

from modules.api.access.auth import identity_of
from modules.api.generation.requests import request_from
from modules.api.jobs.queue import changing, check_parameters, request_of, retried
from modules.api.schema.schemas import Img2ImgBody, Txt2ImgBody
from modules.errors import InvalidValueError, UnknownNameError
from modules.jobs.editing import api_values
from modules.jobs.job import Job, JobStatus
from modules.jobs.ownership import claimed
from modules.jobs.repeats import UNREADABLE
from modules.jobs.store import FINAL, JobRecord
from modules.processing.request.request import request_from_json, request_to_json, tab_of
from modules.services import Services

MAX_LINE = 10000
FIRST, LAST = "first", "last"


@dataclass(frozen=True)
class LineEntry:
    """A job or task. `type` is the tab of an image job, else the work's; `status` queued, running, done, failed or
    interrupted; `parameters` by the names of POST /sdapi/v1/txt2img; times are seconds since 1970."""

    task_id: str
    title: str
    type: str
    status: str
    parameters: Mapping[str, Any]
    position: float
    is_bookmarked: bool
    error: str | None
    created_at: float
    changed_at: float
    images: tuple[tuple[Path, str], ...]  # files with their infotexts

    @property
    def has_ended(self) -> bool:
        """Whether it neither waits nor runs."""
        return JobStatus(self.status).is_final


class LineAccess:
    """Access of routes to the line. All raise `UnknownNameError` for a job that is not there, or not the user's."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._line = services.queue

    def submit(self, request: Request, body: Txt2ImgBody | Img2ImgBody) -> str:
        """Put a job in line as POST /sdapi/v1/txt2img and img2img do, without waiting for it; the task id. Raises what
        those answer with."""
        wanted = claimed(request_from(body, self._services), identity_of(request))
        return self._line.submit(wanted, body.force_task_id).task_id

    @property
    def is_paused(self) -> bool:
        """Whether nothing new is begun."""
        return self._line.is_paused

    def pause(self, is_paused: bool = True) -> None:
        """Begin nothing new, for everybody; or go on."""
        self._line.pause(is_paused)

    def running(self, request: Request) -> str | None:
        """The task id of what runs."""
        running = next(iter(self._line.running(identity_of(request))), None)
        return running.task_id if running is not None else None

    def waiting(self, request: Request, limit: int, offset: int = 0) -> list[LineEntry]:
        """List what waits, in the order in which it will run."""
        line = self._line.first(offset + limit, identity_of(request))[offset:]
        return [self._entry(self._line.record(entry.task_id)) for entry in line]

    def waiting_count(self, request: Request) -> int:
        """How much waits."""
        return self._line.waiting_count(identity_of(request))

    def place(self, request: Request, task_id: str) -> int | None:
        """The place of a job among all that wait, from 0; None for one that does not wait."""
        self._record(request, task_id)
        line = [entry.task_id for entry in self._line.first(MAX_LINE)]
        return line.index(task_id) if task_id in line else None

    def ended(self, request: Request, status: str | None, limit: int, offset: int = 0) -> tuple[int, list[LineEntry]]:
        """How many have ended with this status, or at all, and some of them, what ended last first."""
        statuses = FINAL if status is None else tuple(one for one in FINAL if one.value == status)
        user = identity_of(request).asks_for
        if not statuses:
            return 0, []
        found = self._line.store.ended_jobs(statuses, limit, offset, user)
        return self._line.store.count(statuses, user), [self._entry(record) for record in found]

    def entry(self, request: Request, task_id: str) -> LineEntry:
        """One job."""
        return self._entry(self._record(request, task_id))

    def change(self, request: Request, task_id: str, parameters: Mapping[str, Any], title: str | None = None) -> None:
        """Have a waiting job ask for something else, or give a job another title. Raises `InvalidValueError`."""
        self._record(request, task_id)
        parameters = dict(parameters)
        check_parameters(request, parameters)
        if parameters:
            self._line.change(task_id, changing(self._services, parameters), identity_of(request))
        if title:
            self._line.rename(task_id, title, identity_of(request))

    def bookmark(self, request: Request, task_id: str, is_bookmarked: bool = True) -> None:
        """Keep the record of a job when others are forgotten; or no longer."""
        self._line.bookmark(task_id, is_bookmarked, identity_of(request))

    def remove(self, request: Request, task_id: str) -> None:
        """Cancel a job that waits or runs; forget one that has ended."""
        if self._record(request, task_id).status.is_final:
            self._line.store.remove([task_id])
        else:
            self._line.interrupt(task_id, why="cancelled", who=identity_of(request))

    def clear(self, request: Request) -> int:
        """Cancel all that waits; how much that was."""
        return self._line.clear(who=identity_of(request))

    def forget_ended(self) -> None:
        """Forget all ended jobs of everybody but the bookmarked ones; images stay."""
        self._line.store.prune(0)

    def again(self, request: Request, task_id: str) -> str:
        """Put an ended job in line once more, with its seeds; the new task id."""
        return self._line.again(task_id, who=identity_of(request)).task_id

    def retry_failed(self, request: Request) -> list[str]:
        """Put all failed jobs in line once more; the new task ids."""
        return retried(self._services, identity_of(request).asks_for)

    def run_next(self, request: Request, task_id: str) -> str:
        """Have a waiting job run next; an ended one is put in line again, first. Its task id now."""
        if self._record(request, task_id).status.is_final:
            task_id = self.again(request, task_id)
        with suppress(UnknownNameError):  # it has begun by now
            self._line.run_next(task_id, identity_of(request))
        return task_id

    def move(self, request: Request, task_id: str, before: str) -> None:
        """Put a waiting job before another one, or at an end of the line (`FIRST`, `LAST`)."""
        who = identity_of(request)
        if before == FIRST:
            self._line.move(task_id, 0, who)
        else:
            self._line.move_before(task_id, None if before == LAST else before, who)

    def exported(self, request: Request, limit: int, offset: int = 0) -> Iterator[tuple[LineEntry, Any]]:
        """Waiting jobs, each with all that is needed to put it in line elsewhere, as JSON."""
        for entry in self._line.first(offset + limit, identity_of(request))[offset:]:
            if isinstance(entry, Job):
                record = self._line.record(entry.task_id)
                wanted = request_of(record, self._services)
                yield self._entry(record), None if wanted is None else request_to_json(wanted)

    def imported(self, request: Request, exported: Sequence[Any]) -> list[str]:
        """Put what `exported` gave in line, as this user's, or for an admin as whose it was; the task ids. Raises
        `InvalidValueError`."""
        try:
            found = [request_from_json(one) for one in exported[:MAX_LINE]]
        except UNREADABLE as error:
            raise InvalidValueError(f"This is no export of jobs: {error}.") from error
        who, now = identity_of(request), self._services.settings.current
        own = found if who.is_admin else [claimed(one, who, now) for one in found]
        return [self._line.submit(one).task_id for one in own]

    def _record(self, request: Request, task_id: str) -> JobRecord:
        return self._line.record(task_id, identity_of(request))

    def _entry(self, record: JobRecord) -> LineEntry:
        request = request_of(record, self._services)
        images = [image for image in (record.outcome or {}).get("images", []) if isinstance(image, dict)]
        return LineEntry(
            task_id=record.task_id,
            title=record.title,
            type=tab_of(request) if request is not None else record.type,
            status=record.status.value,
            parameters=api_values(request) if request is not None else {},
            position=record.standing.position,
            is_bookmarked=record.standing.is_bookmarked,
            error=record.error,
            created_at=record.created_at,
            changed_at=record.ended_at or record.started_at or record.created_at,
            images=tuple((Path(one["path"]), one.get("infotext", "")) for one in images if one.get("path")),
        )
