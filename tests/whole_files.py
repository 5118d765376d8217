"""pytest-xdist's work stealing, in which a process has all tests of a file, in their order.

A file that is cut in two builds what its tests share twice, and a process that takes the end of a file and later its
beginning runs them in another order than everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from xdist.scheduler.worksteal import MIN_PENDING, WorkStealingScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


class WholeFiles(WorkStealingScheduling):  # type: ignore[misc]  # xdist has no types
    """A scheduler that gives and takes whole files; a process for which there is none ends."""

    has_none_to_take = False

    def add_node(self, node: WorkerController) -> None:
        """See the base class."""
        super().add_node(node)
        vars(node)["send_steal"] = partial(self._steal, node, node.send_steal)

    def _send_tests(self, node: WorkerController, num: int) -> None:
        while 0 < num < len(self.pending) and not self._begins_a_file(self.pending, num):
            num += 1
        super()._send_tests(node, num)

    def check_schedule(self) -> None:
        """See the base class."""
        super().check_schedule()
        if self.has_none_to_take:
            self.has_none_to_take, self.steal_requested_from_node = False, None
            for node, pending in self.node2pending.items():
                if len(pending) < MIN_PENDING and not node.shutting_down:
                    node.shutdown()

    def _steal(self, node: WorkerController, steal: Callable[[list[int]], None], wanted: Sequence[int]) -> None:
        pending = self.node2pending[node]
        half = len(pending) - len(wanted)
        places = (*range(half, len(pending)), *range(half, MIN_PENDING - 1, -1))
        first = next((place for place in places if self._begins_a_file(pending, place)), None)
        self.has_none_to_take = first is None
        if first is not None:
            steal(pending[first:])

    def _begins_a_file(self, tests: Sequence[int], place: int) -> bool:
        assert self.collection is not None
        before, here = (self.collection[tests[number]].partition("::")[0] for number in (place - 1, place))
        return bool(before != here)
