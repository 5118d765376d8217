"""Captions as tasks: they wait their turn behind images, since they need the same device."""

from __future__ import annotations

from PIL import Image

from modules.captioning.captioners import Captioners
from modules.jobs.queue import JobQueue
from modules.jobs.tasks import Outcome, Task
from modules.settings.values import Settings

INTERROGATE_TYPE = "interrogate"


def start_interrogation(
    queue: JobQueue, captioners: Captioners, image: Image.Image, name: str, settings: Settings, user: str = ""
) -> Task:
    """Put a caption in line; its outcome is `{"caption": ...}`. Raises as `JobQueue.submit_task`."""

    def work(task: Task) -> Outcome:
        task.progress(0, 1, f"interrogating ({name})")
        return {"caption": captioners.caption(image, name, settings)}

    return queue.submit_task(INTERROGATE_TYPE, f"Interrogate ({name})", work, makes_images=True, user=user)
