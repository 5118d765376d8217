"""Downloads as tasks of the queue, in lanes of their own: images are made meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from modules.downloads.downloads import DownloadRequest, Downloads
from modules.jobs.job import Entry, Job
from modules.jobs.lanes import Lane
from modules.jobs.tasks import Outcome, Starter, Task, TaskSpec
from modules.processing.request.result import Result

DOWNLOAD_TYPE = "download"
AT_ONCE = 2  # more would share the same line
GB = 1e9


class DownloadExecutor:
    """Does downloads in the thread of its lane."""

    def __init__(self, downloads: Downloads) -> None:
        self._downloads = downloads

    def run(self, job: Job) -> Result:
        """Makes no images; its lane takes none."""
        raise AssertionError("a lane of downloads took a job of images")

    def close(self) -> None:
        """Close the connections."""
        self._downloads.transport.close()


def with_downloads(lanes: Sequence[Lane], downloads: Downloads) -> tuple[Lane, ...]:
    """`lanes`, which leave downloads to those that are added."""
    for lane in lanes:
        lane.takes = _others(lane.takes)
    executor = DownloadExecutor(downloads)
    return (*lanes, *(Lane(executor, f"download {number}", takes=_is_download) for number in range(1, AT_ONCE + 1)))


def _is_download(entry: Entry) -> bool:
    return entry.type == DOWNLOAD_TYPE


def _others(takes: Callable[[Entry], bool]) -> Callable[[Entry], bool]:
    return lambda entry: not _is_download(entry) and takes(entry)


def download_spec(downloads: Downloads, request: DownloadRequest) -> TaskSpec:
    """A download before it is in line."""

    def work(task: Task) -> Outcome:
        def show(done: int, total: int) -> None:
            task.progress(done, total, f"{done / GB:.2f} of {total / GB:.2f} GB")

        done = downloads.get(request, show)
        return {
            "file": done.path.name,
            "folder": done.path.parent.name,
            "size_bytes": done.size_bytes,
            "sha256": done.sha256,
            "was_there": done.was_there,
        }

    title = f"Downloading {request.name or request.source}"
    return TaskSpec(DOWNLOAD_TYPE, title[:200], work, asdict(request))


def download_starters(downloads: Downloads) -> Mapping[str, Starter]:
    """How a download is begun again from its record; it goes on where it was."""
    return {DOWNLOAD_TYPE: lambda asked: download_spec(downloads, DownloadRequest(**asked))}
