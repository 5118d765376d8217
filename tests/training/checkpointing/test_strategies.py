"""Strategies choose the blocks that they say, and the solver the cheapest ones that fit."""

import random
from itertools import combinations

import pytest

from lib_training.checkpointing import ByBudget, Every, Listed, Strategy, find_blocks, strategy_of
from lib_training.checkpointing.solving import Cost, peak_bytes, solve
from modules.errors import InvalidValueError
from tests.training.checkpointing.models import Stack

BLOCKS = find_blocks(Stack())


@pytest.mark.parametrize(
    ("strategy", "chosen"),
    [
        (Every(), [0, 1, 2, 3, 4, 5]),
        (Every(2), [0, 2, 4]),
        (Every(4), [0, 4]),
        (Every(100), [0]),
        (Every(3, inverted=True), [1, 2, 4, 5]),
        (Listed([1, -1, "layers.3"]), [1, 3, 5]),
        (Listed([1, "layers.3"], inverted=True), [0, 2, 4, 5]),
        (Listed([]), []),
        (strategy_of("all"), [0, 1, 2, 3, 4, 5]),
        (strategy_of("every 2nd"), [0, 2, 4]),
        (strategy_of("Every 3"), [0, 3]),
        (strategy_of("all but every 2"), [1, 3, 5]),
        (strategy_of("blocks 1, -1 layers.3"), [1, 3, 5]),
        (strategy_of("block 2"), [2]),
        (strategy_of("All but blocks 1,layers.3"), [0, 2, 4, 5]),
    ],
)
def test_chosen_blocks(strategy: Strategy, chosen: list[int]) -> None:
    assert sorted(strategy.choose(BLOCKS)) == chosen


def test_budgets_are_written_with_their_unit() -> None:
    assert strategy_of("1.5 GB") == ByBudget(3 << 29)
    assert strategy_of("800mb") == ByBudget(800 << 20)


@pytest.mark.parametrize("text", ["", "none", "every 0", "every second", "5", "0 MB", "-1 GB"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"'every 2'.*'1.5 GB'"):
        strategy_of(text)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="Every 0th block is none"):
        Every(0)
    with pytest.raises(InvalidValueError, match="A budget of 0 bytes is none"):
        ByBudget(0)
    for item in (6, -7, "layers.6"):
        with pytest.raises(InvalidValueError, match=f"no block {item!r}. Blocks are 0 to 5, or names as 'layers.0'"):
            Listed([item]).choose(BLOCKS)


def test_the_solver_finds_what_trying_everything_finds() -> None:
    rng = random.Random(0)
    for _ in range(100):
        count = rng.randint(1, 8)
        kept = [rng.randint(2, 90) << 16 for _ in range(count)]
        costs = [Cost(each, rng.randint(1, each >> 16) << 16, float(rng.randint(1, 50))) for each in kept]
        budget = int(peak_bytes(costs, frozenset()) * rng.uniform(0.3, 1.1)) >> 18 << 18
        seconds = {
            frozenset(some): sum(costs[i].seconds for i in some)
            for size in range(count + 1)
            for some in combinations(range(count), size)
            if peak_bytes(costs, frozenset(some)) <= budget
        }
        if not seconds:
            with pytest.raises(InvalidValueError, match="do not fit"):
                solve(costs, budget)
            continue
        found = solve(costs, budget)
        assert peak_bytes(costs, found) <= budget
        within = (
            min(total for some, total in seconds.items() if peak_bytes(costs, some) <= budget * 0.99)
            if any(peak_bytes(costs, some) <= budget * 0.99 for some in seconds)
            else float("inf")
        )
        assert seconds[found] <= within


def test_less_room_means_more_is_computed_again() -> None:
    costs = [Cost(100, 10, 1.0), Cost(400, 10, 2.0), Cost(100, 10, 1.0), Cost(200, 10, 1.0)]
    assert solve(costs, 800) == frozenset()
    assert solve(costs, 750) in (frozenset({0}), frozenset({2}))
    assert solve(costs, 500) == frozenset({1})
    assert solve(costs, 420) == frozenset({0, 1})
    with pytest.raises(InvalidValueError, match=r"4 blocks do not fit 0.00 MB"):
        solve(costs, 400)


def test_the_last_block_is_never_computed_again() -> None:
    assert solve([Cost(100, 1, 1.0)] * 3, 150) == frozenset({0, 1})
