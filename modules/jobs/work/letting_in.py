"""Images that are made between two steps of a long task, where memory has room for them."""

from collections.abc import Callable

from modules.jobs.computing import Computing
from modules.jobs.dispatch import Admission
from modules.jobs.tasks import Task


def images_between(task: Task, computing: Computing) -> Callable[[], bool]:
    """Return a function that a task calls between two of its steps, in its own thread: images that wait, and for which
    there is memory next to what the task holds, are made now. It returns whether any was made; then the task has to
    make room for itself again."""
    admits = Admission(lambda job: computing.estimator.fits_beside(job.request))
    return lambda: task.let_images_in(admits) > 0
