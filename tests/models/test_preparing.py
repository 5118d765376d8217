"""Work done ahead: its results come in order, its errors at their turn."""

import threading
import time
from collections.abc import Callable

import pytest
import torch

from modules.memory.formats.format import Encoded
from modules.models.loading.preparing import MAX_AHEAD, Preparation


def work_of(number: int, pause: float = 0.0) -> Callable[[], Encoded]:
    def work() -> Encoded:
        time.sleep(pause)
        return Encoded(torch.tensor(number))

    return work


def test_results_come_in_the_order_of_the_steps_whatever_ends_first() -> None:
    steps = [(number, work_of(number, 0.03 * (number % 3 == 0)) if number % 4 else None) for number in range(24)]
    with Preparation() as preparation:
        results = list(preparation.in_order(steps))
    assert [step for step, _ in results] == list(range(24))
    assert [int(ready.data) for _, ready in results if ready is not None] == [n for n in range(24) if n % 4]
    assert all(ready is None for step, ready in results if not step % 4)


@pytest.mark.parametrize("ahead", [MAX_AHEAD, None])
def test_so_much_work_is_begun_before_the_first_result(ahead: int | None) -> None:
    """No more than the threads need, or all of it where nothing bounds it."""
    begun: list[int] = []

    def step(number: int) -> tuple[int, Callable[[], Encoded]]:
        begun.append(number)
        return number, work_of(number)

    with Preparation() as preparation:
        assert next(preparation.in_order((step(number) for number in range(100)), ahead))[0] == 0
        if ahead is None:
            assert len(begun) == 100
        else:
            assert len(begun) <= ahead * torch.get_num_threads() + 2


def test_an_error_comes_at_its_turn_and_ends_the_threads() -> None:
    def fails() -> Encoded:
        raise ValueError("no such weight")

    before = threading.active_count()
    with Preparation() as preparation, pytest.raises(ValueError, match="no such weight"):
        for step, ready in preparation.in_order([(0, work_of(0)), (1, fails), (2, work_of(2))]):
            assert step == 0 and ready is not None
    assert threading.active_count() == before
