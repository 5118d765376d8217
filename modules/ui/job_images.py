"""The images of a job, finished or still running, for routes that are given a task id and a number."""

from modules.errors import UnknownNameError
from modules.jobs.job import Job
from modules.processing.record.result import GeneratedImage
from modules.services import Services


def images_of(job: Job) -> tuple[GeneratedImage, ...]:
    """Those of the result, or those that are finished so far. Raises the job's own error if it failed."""
    return job.result().images if job.status.is_final else job.images


def image_of(services: Services, id_task: str, index: int) -> GeneratedImage:
    """One image. Raises `UnknownNameError` for an unknown job or number."""
    images = images_of(services.queue.get(id_task))
    if not 0 <= index < len(images):
        raise UnknownNameError(f"The job has {len(images)} images; there is no number {index}.")
    return images[index]
