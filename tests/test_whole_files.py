"""Which process runs which tests: those of a file stay together."""

from collections.abc import Sequence
from itertools import groupby
from types import SimpleNamespace

import pytest

pytest.importorskip("xdist")

from tests.whole_files import WholeFiles

TESTS = [f"test_{letter}.py::test_it[{number}]" for letter in "abcdefg" for number in range(5)]


class Process:
    """A process of pytest-xdist, without the process: it gives back what it has not begun."""

    shutting_down = False
    gateway = SimpleNamespace(id="")

    def __init__(self, scheduler: WholeFiles) -> None:
        self.scheduler = scheduler
        self.left: list[int] = []
        self.asked: Sequence[int] = ()
        self.ran: list[str] = []

    def send_runtest_some(self, tests: Sequence[int]) -> None:
        self.left += tests

    def send_steal(self, tests: Sequence[int]) -> None:
        self.asked = tests

    def give(self) -> None:
        if self.asked:
            given, self.asked = [test for test in self.asked if test in self.left[1:]], ()
            self.left = [test for test in self.left if test not in given]
            self.scheduler.remove_pending_tests_from_node(self, given)

    def shutdown(self) -> None:
        self.shutting_down = True

    def run_one(self) -> None:
        self.ran.append(TESTS[self.left[0]])
        self.scheduler.mark_test_complete(self, self.left.pop(0))


@pytest.mark.parametrize("slowness", [1, 2, 5, 50])
def test_a_process_has_all_tests_of_a_file_in_their_order(slowness: int) -> None:
    """One process takes so many times as long as the other, which takes over some of its files."""
    scheduler = WholeFiles(SimpleNamespace(getvalue=lambda name: ["popen"] * 2))
    slow, quick = processes = [Process(scheduler), Process(scheduler)]
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, TESTS)
    scheduler.schedule()
    for moment in range(5000):
        for process in processes:
            process.give()
            if process.left and (process is quick or moment % slowness == 0):
                process.run_one()
    assert sorted(slow.ran + quick.ran) == TESTS
    assert all(len(process.ran) > 0 for process in processes)
    for process in processes:
        files = [test.partition("::")[0] for test in process.ran]
        assert [key for key, _ in groupby(files)] == list(dict.fromkeys(files))  # none was left and begun again
    cut = {test.partition("::")[0] for test in slow.ran} & {test.partition("::")[0] for test in quick.ran}
    assert cut == set()
    assert slowness < 5 or len(quick.ran) > len(TESTS) / 2
