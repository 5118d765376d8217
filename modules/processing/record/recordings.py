"""Where the recorded model outputs of images that are being made lie, so that a later try of a job goes on inside one.

Only folders and names; what is in the files is known to `modules.processing.pipeline.step_recording`.
"""

import hashlib
import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

SUFFIX = ".steps"


@dataclass(frozen=True)
class RunRecording:
    """The files of one run of a job; `prefix` tells the runs of a script from each other. `all_of` is the folder of all
    jobs, whose size has a limit."""

    folder: Path
    prefix: str
    all_of: Path

    def path(self, batch: int, name: str) -> Path:
        """The file of one pass of a batch."""
        return self.folder / f"{self.prefix}-{batch}-{name}{SUFFIX}"

    def forget_batch(self, batch: int) -> None:
        """The images of a batch are finished: what was recorded of it is of no more use."""
        for path in self.folder.glob(f"{self.prefix}-{batch}-*{SUFFIX}"):
            _remove(path)


@dataclass(frozen=True)
class Recordings:
    """The recordings of all jobs, in a folder each. Nothing here raises: without a recording an image is made from its
    beginning."""

    folder: Path

    def of(self, task_id: str, prefix: str) -> RunRecording:
        """The files of one run of a job."""
        return RunRecording(self._folder_of(task_id), prefix.strip("/").replace("/", "-") or "0", self.folder)

    def forget(self, task_id: str) -> None:
        """A job has ended."""
        folder = self._folder_of(task_id)
        if folder.is_dir():
            _remove(folder)

    def keep_only(self, task_ids: Iterable[str]) -> None:
        """Delete what belongs to no job of these. Only for the one process that works off the queue."""
        if not self.folder.is_dir():
            return
        kept = {self._folder_of(task_id).name for task_id in task_ids}
        for folder in self.folder.iterdir():
            if folder.name not in kept:
                _remove(folder)

    def _folder_of(self, task_id: str) -> Path:
        return self.folder / hashlib.sha256(task_id.encode("utf-8", "replace")).hexdigest()[:24]


def _remove(path: Path) -> None:
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("The recorded steps in %s could not be deleted: %s", path, error)
