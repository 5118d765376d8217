"""Whose turn it is: work is taken out of the line, runs, and is given back. For who works the line off."""

import threading
from collections.abc import Callable, Collection, Sequence

from modules.jobs.job import Entry
from modules.jobs.known import Known
from modules.jobs.lanes import Lane
from modules.jobs.waiting import WaitingEntries


class Turns:
    """Turns: what runs, and the way there and back. Its attributes are read and changed under the line's lock."""

    def __init__(
        self,
        lock: threading.RLock,
        waiting: WaitingEntries,
        known: Known,
        groups: Callable[[], bool],
        missing: Callable[[Sequence[str]], str],
    ) -> None:
        """`groups`: whether jobs of the loaded model come first. `missing`: see `modules.jobs.line.Models`."""
        self.running: list[Entry] = []
        self.is_paused = False
        self.is_closed = False
        self.changed: Callable[[Entry | None], object] = lambda entry: None
        self._lock = lock
        self._waiting = waiting
        self._known = known
        self._groups = groups
        self._missing = missing
        self._lanes: tuple[Lane, ...] = ()

    @property
    def loaded(self) -> str:
        """The model of the first lane, whose jobs come first."""
        return self._lanes[0].loaded if self._lanes else ""

    def attach(self, lanes: tuple[Lane, ...], changed: Callable[[Entry | None], object]) -> None:
        """Who works it off. `changed` is called under the lock: with an entry that is new in line, with None where
        something else has changed."""
        self._lanes, self.changed = lanes, changed

    def take(self, lane: Lane, admitted: Collection[str] | None = None) -> Entry | None:
        """The next entry that this lane can do; from now on it runs. Only one of these task ids, where they are given.
        None while nothing is to be begun."""
        with self._lock:
            if self.is_closed or self.is_paused or not lane.is_ready():
                return None
            is_only_lane = len(self._lanes) == 1
            entry = self._waiting.take(lane, self._missing, self._groups(), is_only_lane, admitted)
            if entry is not None:
                self.running.append(entry)
            return entry

    def put_back(self, entry: Entry) -> None:
        """Put what ran first in line again: its worker was lost."""
        with self._lock:
            self.running.remove(entry)
            self._waiting.put_back(entry)
            self.changed(None)

    def left(self, entry: Entry) -> None:
        """Note that what ran runs no more: it has ended, or the server ends."""
        with self._lock:
            if entry in self.running:
                self.running.remove(entry)

    def take_back(self, entries: Sequence[Entry], is_paused: bool) -> None:
        """Put in line what an earlier server left, in its order; where there is any, paused if `is_paused`."""
        with self._lock:
            for entry in entries:
                self._known.add(entry)
            self._waiting.restore(entries)
            if entries and is_paused:
                self.is_paused = True
            self.changed(None)

    def take_no_more(self) -> tuple[Entry, ...]:
        """The server ends: take no more work and begin none. Returns what waits, which stays on record."""
        with self._lock:
            self.is_closed = True
            self.changed(None)
            return self._waiting.clear()
