"""The least recomputation that fits a budget, exactly, up to a rounding of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from modules.errors import InvalidValueError

STEPS = 4096  # into which the budget is divided


@dataclass(frozen=True)
class Cost:
    """Costs that one block was measured to take.

    `kept_bytes`: what waits for its backward pass, its input included, when it is not computed again; `input_bytes`:
    when it is; `seconds`: of its forward pass.
    """

    kept_bytes: int
    input_bytes: int
    seconds: float


def peak_bytes(costs: Sequence[Cost], chosen: frozenset[int]) -> int:
    """The most that waits at one time: on the way back through a block, what those before it left, and all of its own.

    Blocks are in the order in which they run; `chosen` ones leave their input alone until it is their turn. So to
    compute the last one again saves nothing.
    """
    before = highest = 0
    for index, cost in enumerate(costs):
        highest = max(highest, before + cost.kept_bytes)
        before += cost.input_bytes if index in chosen else cost.kept_bytes
    return highest


def solve(costs: Sequence[Cost], budget_bytes: int) -> frozenset[int]:
    """The blocks to compute again: the fewest seconds with `peak_bytes` within the budget.

    A dynamic program over blocks and the bytes used before each; bytes are rounded up to 1/4096 of the budget, so
    what it returns always fits. Raises `InvalidValueError` that says what would fit.
    """
    if peak_bytes(costs, frozenset()) <= budget_bytes:
        return frozenset()
    lightest = frozenset(i for i, cost in enumerate(costs[:-1]) if cost.input_bytes < cost.kept_bytes)
    least = peak_bytes(costs, lightest)
    if least > budget_bytes:
        raise InvalidValueError(
            f"The activations of {len(costs)} blocks do not fit {budget_bytes / 2**20:.2f} MB even if as much as "
            f"possible is computed again: that takes {least / 2**20:.2f} MB. Allow that, or make the batch smaller."
        )
    unit = max(1, budget_bytes // STEPS)
    room = budget_bytes // unit
    seconds = np.full(room + 1, np.inf)  # the fewest, by units used by the blocks so far
    seconds[0] = 0.0
    chosen_at = []
    for cost in costs:
        possible = seconds.copy()
        possible[max(0, room - _units(cost.kept_bytes, unit) + 1) :] = np.inf  # no room for the block's own turn
        keeping = _shifted(possible, _units(cost.kept_bytes, unit))
        again = _shifted(possible, _units(cost.input_bytes, unit)) + cost.seconds
        chosen_at.append(again < keeping)
        seconds = np.minimum(keeping, again)
    if not np.isfinite(seconds).any():
        return lightest  # fits, but for the rounding
    return _traced_back(costs, chosen_at, int(np.argmin(seconds)), unit)


def _traced_back(
    costs: Sequence[Cost], chosen_at: Sequence[npt.NDArray[np.bool_]], used: int, unit: int
) -> frozenset[int]:
    chosen = set()
    for index in range(len(costs) - 1, -1, -1):
        cost = costs[index]
        if chosen_at[index][used]:
            chosen.add(index)
            used -= _units(cost.input_bytes, unit)
        else:
            used -= _units(cost.kept_bytes, unit)
    return frozenset(chosen)


def _units(size: int, unit: int) -> int:
    return -(-size // unit)


def _shifted(seconds: npt.NDArray[np.float64], units: int) -> npt.NDArray[np.float64]:
    """Return the same seconds, with so many units more used."""
    result = np.full(len(seconds), np.inf)
    if units < len(seconds):
        result[units:] = seconds[: len(seconds) - units]
    return result
