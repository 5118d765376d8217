"""In which order groups are needed: traced as they are used, to say which come next."""

from collections.abc import Iterator

Step = tuple[int | None, int]


class Order:
    """Remembers what followed each group the last time, told apart by the group before it.

    Two groups of context are enough for a group that is used twice in a pass (a shared module), and need no notion of
    a pass: the first group of the next step follows the last of this one. Where the order changes (a branch that is
    left out, blocks in another order), what was expected there is replaced; all else stays.
    """

    def __init__(self) -> None:
        self._after: dict[Step, int] = {}
        self._after_one: dict[int, int] = {}
        self._before: int | None = None
        self._now: int | None = None

    def use(self, group: int) -> None:
        """Note that `group` is needed now."""
        if self._now is not None:
            self._after[self._before, self._now] = group
            self._after_one[self._now] = group
        self._before, self._now = self._now, group

    def expected(self) -> Iterator[int]:
        """The groups that come next, as far as is known; ends where nothing is, or the present one comes again."""
        before, now = self._before, self._now
        seen: set[Step] = set()
        while now is not None and (before, now) not in seen:
            seen.add((before, now))
            after = self._after.get((before, now), self._after_one.get(now))
            if after is None or after == self._now:
                return
            yield after
            before, now = now, after

    def forget(self) -> None:
        """Start tracing again."""
        self._after.clear()
        self._after_one.clear()
        self._before = self._now = None
