"""Downloads as tasks of the queue, in lanes of their own: images are made meanwhile."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from modules.downloads.downloads import DownloadRequest, Downloads, Found
from modules.jobs.job import Entry, Job
from modules.jobs.lanes import Lane
from modules.jobs.tasks import Outcome, Starter, Task, TaskSpec
from modules.processing.request.result import Result

DOWNLOAD_TYPE = "download"
AT_ONCE = 2  # more would share the same line
GB, MB = 1e9, 1e6
LOOK_S, RATE_S = 0.5, 10.0


class Rate:
    """How fast the bytes come, over the last seconds: an average from the start on would count what was there
    before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def words(self, done: int, total: int) -> str:
        """How much there is, how fast it comes and how long it will take."""
        now = self._clock()
        if not self._seen or now - self._seen[-1][0] >= LOOK_S:
            self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > RATE_S:
            self._seen.popleft()
        first, before = self._seen[0]
        text = f"{done / GB:.2f} of {total / GB:.2f} GB" if total >= GB else f"{done / MB:.1f} of {total / MB:.1f} MB"
        if now - first < LOOK_S or done <= before:
            return text
        rate = (done - before) / (now - first)
        return f"{text}, {rate / MB:.1f} MB/s, {_duration((total - done) / rate)} left"


def _duration(seconds: float) -> str:
    """Format a duration as the page does: "40 s", "12 min", "2 h 5 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


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
        rate = Rate()

        def found(it: Found) -> None:
            # Kept when the task is stopped, so that what came can be found again, or be thrown away.
            task.keep({"file": it.name, "folder": it.kind.folder, "size_bytes": it.remote.size_bytes, "line": it.line})

        def show(done: int, total: int) -> None:
            task.progress(done, total, rate.words(done, total))

        done = downloads.get(request, show, found)
        return {
            "file": done.path.name,
            "folder": next((name for name, folder in downloads.folders.items() if folder in done.path.parents), ""),
            "size_bytes": done.size_bytes,
            "sha256": done.sha256,
            "was_there": done.was_there,
        }

    title = f"Downloading {request.name or request.source}"
    return TaskSpec(DOWNLOAD_TYPE, title[:200], work, asdict(request))


def download_starters(downloads: Downloads) -> Mapping[str, Starter]:
    """How a download is begun again from its record; it goes on where it was."""
    return {DOWNLOAD_TYPE: lambda asked: download_spec(downloads, DownloadRequest(**asked))}
