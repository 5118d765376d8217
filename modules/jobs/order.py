"""Which of the waiting work comes next: users by turns, jobs of the loaded model together, and nobody waits for ever.

Pure functions over facts; the queue keeps the numbers. Counting by turns and not by the clock, so that a clock that
jumps changes nothing.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_OVERTAKEN = 12  # how often work may be passed over in favour of the loaded model


@dataclass(frozen=True)
class Waiting:
    """Facts of one piece of waiting work. `model` is "" for work without one; `overtaken` counts how often
    later work of the same user was taken first; `is_pinned`: somebody asked for it to run next."""

    user: str = ""
    model: str = ""
    overtaken: int = 0
    is_pinned: bool = False
    is_held: bool = False  # cannot run now


class Facts(Protocol):
    """Facts that the order depends on, of a piece of work: a `Waiting`, or the `Standing` of an entry."""

    @property
    def user(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def overtaken(self) -> int: ...
    @property
    def is_pinned(self) -> bool: ...
    @property
    def is_held(self) -> bool: ...


@dataclass(frozen=True)
class Choice:
    """Choice of what to take: its index, and the indexes of what it overtakes."""

    index: int
    overtaken: tuple[int, ...] = ()


def choose(
    line: Sequence[Facts], loaded: str, turns: Mapping[str, int], groups: bool = True, held: Collection[int] = ()
) -> Choice | None:
    """The next of a line. None where nothing can run. `held`: indexes of what cannot run besides.

    Pinned work first. Then the users with the fewest turns; of these one with work for the loaded model, so that the
    model changes once in a round. Of that user's work the first for the loaded model, unless the user's first has been
    overtaken `MAX_OVERTAKEN` times. `groups` False leaves the loaded model out of it.
    """
    first: dict[str, int] = {}  # by user
    fitting: dict[str, int] = {}
    for index, item in enumerate(line):  # one pass: thousands may wait
        if item.is_held or index in held:
            continue
        if item.is_pinned:
            return Choice(index)
        user = item.user
        if user not in first:
            first[user] = index
        if groups and item.model == loaded and loaded and user not in fitting:
            fitting[user] = index
    if not first:
        return None
    fewest = min(turns.get(user, 0) for user in first)
    served = [user for user in first if turns.get(user, 0) == fewest]
    old = next((first[user] for user in served if line[first[user]].overtaken >= MAX_OVERTAKEN), None)
    if old is not None:
        return Choice(old)
    candidates = [fitting[user] for user in served if user in fitting]
    if not candidates:
        return Choice(min(first[user] for user in served))
    index = min(candidates)
    user = line[index].user
    passed = range(first[user], index)
    overtaken = (other for other in passed if line[other].user == user and not line[other].is_held)
    return Choice(index, tuple(other for other in overtaken if other not in held))


def turns_of_newcomer(user: str, line: Sequence[Facts], turns: Mapping[str, int]) -> int:
    """The turns that a user counts with who has had nothing in line: no fewer than those who wait, so that a time
    without jobs is no claim to be served first for long."""
    others = [turns.get(item.user, 0) for item in line]
    return max(turns.get(user, 0), min(others, default=0))


def in_order(
    line: Sequence[Facts],
    loaded: str,
    turns: Mapping[str, int],
    limit: int,
    groups: bool = True,
    held: Collection[int] = (),
) -> list[int]:
    """The indexes of what runs first, at most `limit`: what `choose` gives, asked again and again, but looking at each
    piece of work a few times only. What is held is not among them."""
    return _Predicted(line, loaded, turns, groups, held).first(limit)


class _Predicted:
    """A line that is worked off in thought."""

    def __init__(
        self, line: Sequence[Facts], loaded: str, turns: Mapping[str, int], groups: bool, held: Collection[int]
    ) -> None:
        self._line = line
        self._loaded = loaded if groups else ""
        self._groups = groups
        self._turns = dict(turns)
        self._overtaken = [item.overtaken for item in line]
        self._is_taken = [item.is_held or index in held for index, item in enumerate(line)]
        self._pinned = deque[int]()
        self._of_user: dict[str, deque[int]] = {}
        self._fitting: dict[tuple[str, str], deque[int]] = {}
        for index, item in enumerate(line):
            if self._is_taken[index]:
                continue
            if item.is_pinned:
                self._pinned.append(index)
            self._of_user.setdefault(item.user, deque()).append(index)
            self._fitting.setdefault((item.user, item.model), deque()).append(index)

    def first(self, limit: int) -> list[int]:
        """See `in_order`."""
        order: list[int] = []
        while len(order) < limit and (index := self._next()) is not None:
            self._is_taken[index] = True
            item = self._line[index]
            self._turns[item.user] = self._turns.get(item.user, 0) + 1
            if self._groups:
                self._loaded = item.model or self._loaded
            order.append(index)
        return order

    def _next(self) -> int | None:
        pinned = self._head(self._pinned)
        if pinned is not None:
            return pinned
        heads = {user: head for user, queue in self._of_user.items() if (head := self._head(queue)) is not None}
        if not heads:
            return None
        fewest = min(self._turns.get(user, 0) for user in heads)
        served = [user for user in sorted(heads, key=heads.__getitem__) if self._turns.get(user, 0) == fewest]
        old = next((heads[user] for user in served if self._overtaken[heads[user]] >= MAX_OVERTAKEN), None)
        if old is not None:
            return old
        queues = [self._fitting.get((user, self._loaded)) for user in served] if self._loaded else []
        candidates = [head for queue in queues if queue and (head := self._head(queue)) is not None]
        if not candidates:
            return heads[served[0]]
        index = min(candidates)
        for passed in self._of_user[self._line[index].user]:
            if passed >= index:
                break
            self._overtaken[passed] += not self._is_taken[passed]
        return index

    def _head(self, queue: deque[int]) -> int | None:
        """The first that is not taken."""
        while queue and self._is_taken[queue[0]]:
            queue.popleft()
        return queue[0] if queue else None
