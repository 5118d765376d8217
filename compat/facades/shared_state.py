"""`shared.state`: the job that runs, as far as this process knows of it, and what stops it."""

from __future__ import annotations

import time
from typing import Any

from compat.host import interrupt, job_view, skip


class State:
    """Reading gives the state of the running job; what an extension writes holds for its own reading. `interrupted` and
    `skipped`, written as True, stop the job or its batch."""

    def __init__(self) -> None:
        self.__dict__.update(time_start=time.time(), server_start=time.time(), _own={})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        own: dict[str, Any] = self.__dict__["_own"]
        view = job_view()
        values = {
            "interrupted": view.is_interrupted or bool(own.get("interrupted")),
            "skipped": view.is_skipped,
            "stopping_generation": view.is_interrupted,
        }
        shown = {
            "job": view.job,
            "job_no": view.images_done,
            "job_count": view.images or -1,
            "sampling_step": view.step,
            "sampling_steps": view.steps,
            "textinfo": view.text or None,
            "current_image": view.preview,
            "current_latent": None,
            "current_image_sampling_step": view.step,
            "id_live_preview": view.step,
            "job_timestamp": time.strftime("%Y%m%d%H%M%S"),
            "processing_has_refined_job_count": False,
            "need_restart": False,
            "server_command": None,
        }
        if name in values:
            return values[name]
        if name in own:
            return own[name]
        if name in shown:
            return shown[name]
        raise AttributeError(f"shared.state has no {name!r}; known: {', '.join({**values, **shown})}", name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "interrupted" and value:
            self.interrupt()
        elif name == "skipped" and value:
            self.skip()
        self.__dict__["_own"][name] = value

    def interrupt(self) -> None:
        """Stop the running job at its next step."""
        interrupt()

    def stop_generating(self) -> None:
        """Do the same."""
        self.interrupt()

    def skip(self) -> None:
        """Leave the running batch."""
        skip()

    def begin(self, job: str = "(unknown)") -> None:
        """An extension begins work of its own; what it wrote before is forgotten."""
        self.__dict__["_own"] = {"job": job, "job_no": 0}
        self.__dict__["time_start"] = time.time()

    def end(self) -> None:
        """Its work is over."""
        self.__dict__["_own"] = {}

    def nextjob(self) -> None:
        """The next part of its work begins."""
        own = self.__dict__["_own"]
        own["job_no"] = own.get("job_no", 0) + 1

    def assign_current_image(self, image: Any) -> None:
        """Set what `current_image` gives from now on."""
        self.__dict__["_own"]["current_image"] = image

    def set_current_image(self) -> None:
        """Previews are made by the program."""

    def do_set_current_image(self) -> None:
        """Previews are made by the program."""

    def request_restart(self) -> None:
        """Accepted; the page is built again by Reload UI."""

    def dict(self) -> dict[str, Any]:
        """Return what the API's progress shows."""
        names = ("skipped", "interrupted", "stopping_generation", "job", "job_count", "job_timestamp", "job_no")
        return {name: getattr(self, name) for name in (*names, "sampling_step", "sampling_steps")}


class TotalTQDM:
    """The progress bar in the terminal, which this program has not."""

    def reset(self) -> None:
        """Nothing is shown."""

    def update(self) -> None:
        """Nothing is shown."""

    def updateTotal(self, new_total: int) -> None:  # noqa: N802 - their name
        """Nothing is shown."""

    def clear(self) -> None:
        """Nothing is shown."""


state = State()
