"""Threads with one core each: their own count is 1, everybody else's stays."""

import threading

import pytest
import torch

from modules.models.loading.preparing import one_core_workers


@pytest.fixture
def three_cores() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield None
    torch.set_num_threads(before)


def test_workers_have_one_core_and_others_keep_theirs(three_cores: None) -> None:
    with one_core_workers() as pool:
        counts = [future.result() for future in [pool.submit(torch.get_num_threads) for _ in range(12)]]
    assert counts == [1] * 12
    assert torch.get_num_threads() == 3
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [3]


def test_as_many_workers_as_cores_unless_said_otherwise(three_cores: None) -> None:
    for count, expected in ((None, 3), (2, 2)):
        meeting = threading.Barrier(expected, timeout=120)  # passes only if so many run at once
        with one_core_workers(count) as pool:
            for future in [pool.submit(meeting.wait) for _ in range(expected)]:
                future.result()
