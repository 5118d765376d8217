"""The pictures of a job, finished or still running, for routes that are given a task id and a number."""

from modules.errors import UnknownNameError
from modules.jobs.job import Job
from modules.processing.record.result import Picture
from modules.services import Services


def pictures_of(job: Job) -> tuple[Picture, ...]:
    """Those of the result, or those that are finished so far. Raises the job's own error if it failed."""
    return job.result().pictures if job.status.is_final else job.pictures


def picture_of(services: Services, id_task: str, index: int) -> Picture:
    """One picture. Raises `UnknownNameError` for an unknown job or number."""
    pictures = pictures_of(services.queue.get(id_task))
    if not 0 <= index < len(pictures):
        raise UnknownNameError(f"The job has {len(pictures)} pictures; there is no number {index}.")
    return pictures[index]
