"""Streams and events of a GPU that is made up, and who may touch which memory when.

Every stream is a queue. What is queued knows how far each other queue had come for certain (a vector clock, brought on
by events), so that a read of what another queue may still be writing is found at once, however the test happened to
run. Copies out of page-locked memory are done as late as a real GPU may do them: their target holds garbage until then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

HOST = "host"


class RaceError(AssertionError):
    """Memory is used while another stream may still be writing it, or written while another may still read it."""


@dataclass
class Clock:
    """By queue: how much of its work is certainly done before what comes next."""

    seen: dict[str, int] = field(default_factory=dict)

    def merge(self, other: dict[str, int]) -> None:
        """What `other` has seen is seen here too."""
        for name, count in other.items():
            if count > self.seen.get(name, 0):
                self.seen[name] = count


@dataclass
class FakeEvent:
    """A place in a queue."""

    streams: Streams
    seen: dict[str, int]

    def synchronize(self) -> None:
        """The host waits."""
        self.streams.host.merge(self.seen)
        self.streams.do_until(self.seen)
        self.streams.log.append(("host waits", dict(self.seen)))


@dataclass
class FakeStream:
    """One queue."""

    streams: Streams
    name: str
    clock: Clock = field(default_factory=Clock)
    count: int = 0

    def record_event(self) -> FakeEvent:
        """A place after all that was queued until now."""
        return FakeEvent(self.streams, {**self.clock.seen, self.name: self.count})

    def wait_event(self, event: FakeEvent) -> None:
        """What is queued from now on comes after the event."""
        self.clock.merge(event.seen)
        if self.name == self.streams.main.name:  # whose work is done at once, so what it waits for must be
            self.streams.do_until(event.seen)

    def synchronize(self) -> None:
        """The host waits for all of it."""
        self.record_event().synchronize()

    def wait_stream(self, other: FakeStream) -> None:
        """What is queued from now on comes after all that is in the other queue."""
        self.wait_event(other.record_event())


@dataclass
class Uses:
    """Who has touched a memory last: by queue, at which of its works."""

    written: tuple[str, int] | None = None
    read: dict[str, int] = field(default_factory=dict)

    def all(self) -> dict[str, int]:
        """The last works that touched it."""
        found = dict(self.read)
        if self.written is not None:
            name, count = self.written
            found[name] = max(found.get(name, 0), count)
        return found


@dataclass
class _Late:
    stream: str
    at: int
    work: Callable[[], None]


class Streams:
    """All queues of one GPU."""

    def __init__(self) -> None:
        self.host = Clock()
        self.main = FakeStream(self, "main")
        self.log: list[tuple[str, object]] = []
        self._count = 0
        self._local = threading.local()
        self._late: list[_Late] = []
        self._lock = threading.RLock()

    def new(self) -> FakeStream:
        """One more queue."""
        self._count += 1
        return FakeStream(self, f"side {self._count}")

    @property
    def present(self) -> FakeStream:
        """The queue of this thread."""
        return getattr(self._local, "stream", self.main)

    @contextmanager
    def inside(self, stream: FakeStream) -> Iterator[None]:
        """In this thread what comes is queued there."""
        before = self.present
        self._local.stream = stream
        try:
            yield
        finally:
            self._local.stream = before

    def begin(self) -> tuple[FakeStream, int]:
        """One more work in the present queue: it comes after what the host has waited for."""
        stream = self.present
        with self._lock:
            stream.count += 1
            stream.clock.merge(self.host.seen)
            stream.clock.seen[stream.name] = stream.count
            return stream, stream.count

    def touch(self, uses: Uses, stream: FakeStream, at: int, is_write: bool, what: str) -> None:
        """Note that a work touches a memory. Raises `RaceError` where that is not certainly after whom it must be."""
        before = uses.all() if is_write else dict([uses.written] if uses.written is not None else [])
        for name, count in before.items():
            if stream.clock.seen.get(name, 0) < count:
                doing = "writes" if is_write else "reads"
                raise RaceError(
                    f"{what}: {stream.name} {doing} what {name} may still be using (work {count} of {name}; "
                    f"{stream.clock.seen.get(name, 0)} are certainly done)"
                )
        if is_write:
            uses.written, uses.read = (stream.name, at), {}
        else:
            uses.read[stream.name] = at

    def do_late(self, stream: FakeStream, at: int, work: Callable[[], None]) -> None:
        """Do it when somebody waits for it."""
        with self._lock:
            self._late.append(_Late(stream.name, at, work))

    def do_until(self, seen: dict[str, int]) -> None:
        """Do the late works that these places come after, in order."""
        with self._lock:
            due = [late for late in self._late if late.at <= seen.get(late.stream, 0)]
            self._late = [late for late in self._late if late not in due]
            for late in due:
                late.work()

    def finish(self) -> None:
        """The host waits for everything."""
        with self._lock:
            due, self._late = self._late, []
            for late in due:
                late.work()
        everything = {self.main.name: self.main.count, self.present.name: self.present.count}
        self.host.merge({**everything, **{late.stream: late.at for late in due}})
