"""Return of what an earlier server left unfinished into the line, in its order, with the images that it has made."""

import logging
from functools import partial

from modules.jobs.job import IMAGE_TYPE, Entry, Job, JobStatus
from modules.jobs.line import Line
from modules.jobs.repeats import UNREADABLE
from modules.jobs.store import ImageRecord, JobRecord
from modules.jobs.tasks import Task
from modules.processing.request.request import GenerationRequest

log = logging.getLogger(__name__)


class Restart:
    """Only for the one process that works off the queue, before its lanes start."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._store = line.store

    def restore(self) -> int:
        """Put what is unfinished back in line; returns how much that is.

        What ran when the server was killed is tried again, without the images that it has finished; when that has
        happened too often since its last image, it has failed.
        """
        line, store = self._line, self._store
        options = line.options()
        restored, images = [], store.images.of()
        for record in store.waiting():
            try:
                entry = self._entry(record, images.get(record.task_id, []), options.retries)
            except UNREADABLE as error:
                store.ended(record.task_id, JobStatus.FAILED, f"The job could not be taken up again: {error}")
                continue
            if entry is not None:
                restored.append(entry)
        line.turns.take_back(restored, is_paused=options.starts_paused)
        store.clean_inputs()
        store.prune(options.kept_records)
        line.images.forget_all_but([entry.task_id for entry in restored])
        return len(restored)

    def _entry(self, record: JobRecord, images: list[ImageRecord], retries: int) -> Entry | None:
        """The entry of a record, or None for one that is over."""
        made = self._line.images.made(record.task_id, record.standing.user, images)
        has_progress = any(not item.is_done for item in made)
        if record.status is JobStatus.RUNNING and not has_progress and record.standing.attempts > retries:
            reason = f"The server ended {record.standing.attempts} times while this job ran; it is not tried again."
            self._store.ended(record.task_id, JobStatus.FAILED, reason)
            return None
        if not record.standing.is_lasting:
            reason = "The server ended before the job did, and its client waits no more."
            self._store.ended(record.task_id, JobStatus.INTERRUPTED, reason)
            return None
        if record.status is JobStatus.RUNNING:
            log.warning("The server ended while %s ran (%s); it is tried again.", record.task_id, record.title)
        entry: Entry
        if record.type == IMAGE_TYPE:
            entry = Job(
                record.task_id,
                partial(self._request, record.task_id),
                title=record.title,
                created_at=record.created_at,
                listener=self._line.images,
                made=[item.image for item in made],
            )
        else:
            work = self._line.repeats.spec_of(record)
            entry = Task(record.task_id, record.type, record.title, record.request, work, record.created_at)
            entry.noted = self._store.notes(record.task_id)
        entry.standing = record.standing
        return entry

    def _request(self, task_id: str) -> GenerationRequest:
        """Read what an image job asks for, read when it is needed: thousands may come back at once."""
        return self._line.repeats.request_of(self._line.record(task_id))
