"""Cases that prove what others prove too: run where time matters less.

They are left out unless `FEATHERWEIGHT_THOROUGH=1` is set or `--hypothesis-profile=thorough` is given. Each list of
cases says beside it which others prove the same.
"""

import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings


def is_thorough() -> bool:
    """Whether all cases are run."""
    examples = settings.default.max_examples if settings.default is not None else 0
    return os.environ.get("FEATHERWEIGHT_THOROUGH") == "1" or examples >= 1000


def thoroughly(*values: Any) -> Any:
    """A case of `parametrize` that is left out by default."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def usually(values: Iterable[str], is_usual: Callable[[str], bool]) -> list[Any]:
    """The cases of `parametrize`, of which only the usual ones are run by default."""
    return [value if is_usual(value) else thoroughly(value) for value in values]


def pairs(firsts: Iterable[str], seconds: Iterable[str], usual: Collection[tuple[str, str]]) -> list[Any]:
    """The cases of `parametrize` over two names: all pairs, of which only the usual ones are run by default."""
    every = [(first, second) for second in seconds for first in firsts]
    return [pair if pair in usual else thoroughly(*pair) for pair in every]
