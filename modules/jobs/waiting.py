"""Waiting work in its order: places in the line, and which entry a lane takes next. No lock and no record of its
own."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence

from modules.jobs.job import Entry
from modules.jobs.lanes import Lane
from modules.jobs.order import Choice, choose, in_order, turns_of_newcomer

log = logging.getLogger(__name__)

MAX_ASKED = 300  # of waiting work, how much a lane of several is asked for at a time: that may mean reading records


class WaitingEntries:
    """The entries that wait. Their standing is changed here and nowhere else."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._turns: dict[str, int] = {}  # by user
        self._next_position = 1.0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __contains__(self, entry: object) -> bool:
        return entry in self._entries

    def index(self, entry: Entry) -> int:
        """How many stand before an entry."""
        return self._entries.index(entry)

    # -- into the line and out of it ---------------------------------------------------------------------------------

    def new_position(self) -> float:
        """A position behind all others."""
        position, self._next_position = self._next_position, self._next_position + 1.0
        return position

    def append(self, entry: Entry) -> None:
        """Put a new entry last. Its user's turns are counted from those of the others in line."""
        user = entry.standing.user
        if all(item.standing.user != user for item in self._entries):
            self._turns[user] = turns_of_newcomer(user, [item.standing for item in self._entries], self._turns)
        self._entries.append(entry)

    def restore(self, entries: Sequence[Entry]) -> None:
        """Put entries last that have their positions already."""
        self._entries.extend(entries)
        self._next_position = max((item.standing.position for item in self._entries), default=0.0) + 1.0

    def put_back(self, entry: Entry) -> None:
        """Put an entry first that was taken."""
        self._entries.insert(0, entry)

    def remove(self, entry: Entry) -> None:
        """Take an entry out."""
        self._entries.remove(entry)

    def clear(self, chosen: Callable[[Entry], bool] = lambda entry: True) -> tuple[Entry, ...]:
        """Take out all, or those that are chosen; returns them."""
        removed = tuple(entry for entry in self._entries if chosen(entry))
        self._entries = [] if len(removed) == len(self._entries) else [e for e in self._entries if not chosen(e)]
        return removed

    @property
    def has_held(self) -> bool:
        """Whether something waits for what is not there."""
        return any(entry.standing.waits_for for entry in self._entries)

    # -- the order ---------------------------------------------------------------------------------------------------

    def pin(self, entry: Entry) -> list[Entry]:
        """Have an entry run before everything else; returns what has changed its standing."""
        for other in self._entries:
            other.standing.is_pinned = other.standing.is_pinned and other is not entry
        entry.standing.is_pinned = True
        return self._put(entry, 0)

    def move(self, entry: Entry, index: int) -> list[Entry]:
        """Put an entry at a place of the line, 0 first; one that was asked to run next no longer is. Returns what has
        changed its standing."""
        entry.standing.is_pinned, entry.standing.overtaken = False, 0
        return self._put(entry, index)

    def _put(self, entry: Entry, index: int) -> list[Entry]:
        """Give an entry a position between its new neighbours'; returns what has changed."""
        line = self._entries
        line.remove(entry)
        index = max(0, min(index, len(line)))
        line.insert(index, entry)
        before = line[index - 1].standing.position if index > 0 else None
        after = line[index + 1].standing.position if index + 1 < len(line) else None
        if before is None or after is None:
            entry.standing.position = after - 1.0 if after is not None else (before or 0.0) + 1.0
            self._next_position = max(self._next_position, entry.standing.position + 1.0)
            return [entry]
        entry.standing.position = (before + after) / 2
        if before < entry.standing.position < after:
            return [entry]
        for number, item in enumerate(line):  # no room is left between the two
            item.standing.position = float(number + 1)
        self._next_position = float(len(line) + 1)
        return list(line)

    def in_order(self, limit: int, loaded: str, groups: bool) -> tuple[Entry, ...]:
        """The first of what waits, in the order in which it will run as things stand now; what cannot run is last."""
        line = self._entries
        held = {index for index, item in enumerate(line) if item.standing.waits_for}
        order = in_order([item.standing for item in line], loaded, self._turns, limit, groups, held)
        if len(order) < limit:
            known = set(order)
            order += [index for index in range(len(line)) if index not in known]
        return tuple(line[index] for index in order[:limit])

    def take(
        self,
        lane: Lane,
        missing: Callable[[Sequence[str]], str],
        groups: bool,
        is_only_lane: bool,
        admitted: Collection[str] | None = None,
    ) -> Entry | None:
        """Take the next entry that this lane can do; only one of these task ids, where they are given. `missing`: see
        `Models`."""
        line = [item.standing for item in self._entries]
        held = set[int]()
        if admitted is not None:
            held = {index for index, item in enumerate(self._entries) if item.task_id not in admitted}
        if not is_only_lane:
            for index, item in enumerate(self._entries):
                if index >= MAX_ASKED or not lane.may_take(item):
                    held.add(index)
        while (choice := choose(line, lane.loaded, self._turns, groups, held)) is not None:
            entry = self._entries[choice.index]
            try:
                entry.standing.waits_for = missing(entry.standing.needs)
            except Exception:  # it runs, and says itself what is wrong
                log.exception("what %s needs could not be looked for", entry.task_id)
                entry.standing.waits_for = ""
            if not entry.standing.waits_for:
                self._count(lane, choice, entry)
                return self._entries.pop(choice.index)
            held.add(choice.index)
        return None

    def _count(self, lane: Lane, choice: Choice, entry: Entry) -> None:
        for index in choice.overtaken:
            self._entries[index].standing.overtaken += 1
        user = entry.standing.user
        self._turns[user] = self._turns.get(user, 0) + 1
        lane.loaded = entry.standing.model or lane.loaded
