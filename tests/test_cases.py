"""Cases of one test: all run, and those that fail are listed."""

import inspect

import pytest

from tests.cases import for_each


def test_all_cases_run_and_the_failed_ones_are_listed() -> None:
    seen = []

    @for_each("left", [1, 2, 3])
    @for_each("right", [10, 20])
    def check(left: int, right: int, offset: int) -> None:
        seen.append(left * right)
        assert left * right + offset < 61

    assert list(inspect.signature(check).parameters) == ["offset"], "the rest are fixtures"
    check(offset=0)
    assert seen == [10, 20, 20, 40, 30, 60]
    with pytest.raises(AssertionError, match=r"^2 of 3 cases failed:\n2: .*1 of 2 cases failed:\n20: .*\n3: "):
        check(offset=30)


def test_a_test_without_cases_is_none() -> None:
    with pytest.raises(AssertionError, match="proves nothing"):
        for_each("left", [])
