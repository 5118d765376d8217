"""Captions as tasks: they wait their turn behind images, since they need the same device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PIL import Image

from modules.captioning.captioners import Captioners
from modules.errors import InvalidValueError
from modules.jobs.line import Line
from modules.jobs.tasks import Outcome, Starter, Task, TaskSpec
from modules.settings.values import Settings
from modules.system.texts import page_text

INTERROGATE_TYPE = "interrogate"


def start_interrogation(
    queue: Line, captioners: Captioners, image: Image.Image, name: str, settings: Settings, user: str = ""
) -> Task:
    """Put a caption in line; its outcome is `{"caption": ...}`. Raises as `Line.submit_spec`."""
    return queue.submit_spec(_spec(captioners, image, name, settings, user))


def interrogation_starters(captioners: Captioners) -> Mapping[str, Starter]:
    """How captions are begun from their request; the image is not on record."""

    def start(asked: dict[str, Any]) -> TaskSpec:
        if "image" not in asked:
            raise InvalidValueError("The image of an interrogation is not kept; ask for its caption again.")
        return _spec(captioners, asked["image"], asked["name"], asked["settings"], "")

    return {INTERROGATE_TYPE: start}


def _spec(captioners: Captioners, image: Image.Image, name: str, settings: Settings, user: str) -> TaskSpec:
    def work(task: Task) -> Outcome:
        def progress(done: int, most: int) -> None:
            task.progress(done, most, page_text(f"interrogating ({name})"))

        progress(0, 1)
        return {"caption": captioners.caption(image, name, settings, progress)}

    return TaskSpec(
        INTERROGATE_TYPE,
        page_text(f"Interrogate ({name})"),
        work,
        {"name": name},
        makes_images=True,
        user=user,
        attached={"image": image, "settings": settings},
    )
