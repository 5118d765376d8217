"""The images of jobs on record: where each is about to appear, that it is finished, and who receives it."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from modules.jobs.job import Job, recorded_images
from modules.jobs.known import Known
from modules.jobs.store import ImageRecord, JobStore
from modules.processing.record.recordings import Recordings
from modules.processing.record.spool import SavedLate
from modules.processing.request.result import GeneratedImage, ImageRole

log = logging.getLogger(__name__)


class ImageListener(Protocol):
    """Told of every finished image of every job, also of those that an earlier server finished in its last moment."""

    def finished(self, task_id: str, user: str, image: GeneratedImage) -> None:
        """Called in the thread that computes."""

    def saved_late(self, task_id: str, user: str, image: GeneratedImage, before: Path | None) -> None:
        """An image that could not be saved is now where it belongs; it was announced with the path `before`, or not
        at all without one. Called in a thread of its own."""


class JobImages:
    """Words of jobs on their images, kept in the record. Implements `modules.jobs.job.JobListener`."""

    def __init__(self, store: JobStore, known: Known, recordings: Recordings | None = None) -> None:
        self._store = store
        self._known = known
        self._recordings = recordings  # what is kept of images that are being made
        self._listeners: list[ImageListener] = []

    def listen(self, listener: ImageListener) -> None:
        """Have every finished image told."""
        self._listeners.append(listener)

    def saving(self, job: Job, image: GeneratedImage, path: Path, fingerprint: str) -> None:
        """Record where an image is about to appear: should the process die before it says more, the next one looks."""
        if image.is_finished:
            self._store.images.saving(job.task_id, image, path, fingerprint)

    def finished(self, job: Job, image: GeneratedImage) -> None:
        """Record an image and tell of it."""
        if not image.is_finished:
            return
        self._tell(job.task_id, job.standing.user, image)  # first: what is not yet done is reported again after a kill
        self._store.images.done(job.task_id, image)
        job.standing.attempts = 0

    def made(self, task_id: str, user: str, recorded: Sequence[ImageRecord]) -> list[ImageRecord]:
        """List those of the recorded images that are there, also those whose file appeared in the last moment, which
        are reported now."""
        made = [item for item in recorded if item.exists()]
        for item in made:
            if not item.is_done and (found := item.image.read()) is not None:
                self._store.images.done(task_id, found)
                if found.role is ImageRole.SAMPLE:
                    self._tell(task_id, user, found)
        return made

    def made_by(self, job: Job) -> list[ImageRecord]:
        """List what a job has made whose worker was lost."""
        recorded = self._store.images.of(job.task_id).get(job.task_id, [])
        return self.made(job.task_id, job.standing.user, recorded)

    def remove(self, job: Job, image: GeneratedImage) -> None:
        """Forget an image of a final job, in the record too."""
        job.remove_image(image)
        self._record_images(job)

    def _record_images(self, job: Job) -> None:
        record = self._store.get(job.task_id)
        if record is None or not record.outcome:
            return
        images = job.result().images if job.has_result else job.images
        self._store.outcome_changed(job.task_id, {**record.outcome, "images": recorded_images(images)})

    def forget(self, task_id: str) -> None:
        """Delete what was kept of images that a job was making: it has ended."""
        if self._recordings is not None:
            self._recordings.forget(task_id)

    def forget_all_but(self, task_ids: Sequence[str]) -> None:
        """Forget the same of all jobs but these."""
        if self._recordings is not None:
            self._recordings.keep_only(task_ids)

    def saved_late(self, saved: SavedLate) -> None:
        """An image that could not be saved is where it belongs: so say the job, its record and whoever listens."""
        unsaved, task_id = saved.unsaved, saved.unsaved.task_id
        job = self._known.find(task_id)
        if saved.before is not None:
            self._store.images.moved(saved.before, saved.after)
        if job is not None:
            job.saved_late(saved)
            if saved.before is None and job.has_result:
                self._record_images(job)
        role = ImageRole.GRID if unsaved.is_grid else ImageRole.SAMPLE
        seed, infotext = unsaved.context.seed, unsaved.infotext or ""
        image = GeneratedImage(saved.image, infotext, seed, seed, saved.after, role)
        for listener in self._listeners:
            listener.saved_late(task_id, unsaved.context.user, image, saved.before)

    def _tell(self, task_id: str, user: str, image: GeneratedImage) -> None:
        for listener in self._listeners:
            try:
                listener.finished(task_id, user, image)
            except Exception:  # costs neither the job nor the other listeners
                log.exception("%s was finished, and somebody who was notified failed", image.path or task_id)
