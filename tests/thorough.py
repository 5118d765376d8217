"""Cases that prove what others prove too: run with `--thorough`, where time matters less.

`tests/thorough.txt` names for each of them the default test that holds the same behavior; `python -m tests.thorough`
writes it and `tests/test_thorough.py` checks it. The holder is what the mark says (`held_by`: the name of a test of the
same file, or `tests/folder/test_file.py::test_name`, with its case in brackets or without); where it says nothing, a
default case of the same test.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

LIST = Path(__file__).with_name("thorough.txt")
ENVIRONMENT = "FEATHERWEIGHT_THOROUGH"
"""Set by `--thorough`, for the processes that tests start."""
HOLDERS = pytest.StashKey[dict[str, str]]()
"""Of a run: `holders` of what it collects."""


def is_thorough() -> bool:
    """Whether all cases are run."""
    return os.environ.get(ENVIRONMENT) == "1"


def thoroughly(*values: Any, held_by: str | None = None) -> Any:
    """A case of `parametrize` that is left out by default."""
    return pytest.param(*values, marks=pytest.mark.thorough(held_by=held_by))


def usually(
    values: Iterable[str],
    is_usual: Callable[[str], bool],
    held_by: Callable[[str], str | None] = lambda value: None,
) -> list[Any]:
    """The cases of `parametrize`, of which only the usual ones are run by default."""
    return [value if is_usual(value) else thoroughly(value, held_by=held_by(value)) for value in values]


def pairs(firsts: Iterable[str], seconds: Iterable[str], usual: Collection[tuple[str, str]]) -> list[Any]:
    """The cases of `parametrize` over two names: all pairs, of which only the usual ones are run by default."""
    every = [(first, second) for second in seconds for first in firsts]
    return [pair if pair in usual else thoroughly(*pair) for pair in every]


def is_left_out(item: pytest.Item) -> bool:
    """Whether a test runs only with `--thorough`."""
    return item.get_closest_marker("thorough") is not None


def holders(items: Sequence[pytest.Item]) -> dict[str, str]:
    """By thorough test the default one that holds the same behavior, "" where none of `items` does."""
    usual: dict[str, list[str]] = {}
    for item in items:
        if not is_left_out(item):
            usual.setdefault(item.nodeid.partition("[")[0], []).append(item.nodeid)
    return {item.nodeid: _holder(item, usual) for item in items if is_left_out(item)}


def _holder(item: pytest.Item, usual: dict[str, list[str]]) -> str:
    said = None
    for mark in item.iter_markers("thorough"):
        said = said or mark.kwargs.get("held_by")
    own_file, _, own = item.nodeid.partition("::")
    wanted = said or own.partition("[")[0]
    wanted = wanted if "::" in wanted else f"{own_file}::{wanted}"
    found = usual.get(wanted.partition("[")[0], [])
    if "[" in wanted:
        return wanted if wanted in found else ""
    words = set(_case(item.nodeid))
    return max(found, key=lambda name: len(words & set(_case(name))), default="")


def _case(name: str) -> list[str]:
    """The parts of a parametrized case's name."""
    return name.partition("[")[2].rstrip("]").split("-")


def listed(held: dict[str, str]) -> str:
    """The text of `LIST`."""
    return "".join(f"{test} <- {holder}\n" for test, holder in sorted(held.items()))


class _Writer:
    """A plugin that writes `LIST` after the collection."""

    def __init__(self) -> None:
        self.without: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        held = session.config.stash[HOLDERS]
        self.without = [test for test, holder in held.items() if not holder]
        LIST.write_text(listed(held), encoding="utf-8")


def write_list(*tests: str) -> str | None:
    """Write `LIST` from what these files of tests hold; returns what is wrong with it."""
    writer = _Writer()
    pytest.main(["--collect-only", "-qq", *tests], plugins=[writer])
    return "\n".join(f"no default test holds {test}" for test in writer.without) or None


if __name__ == "__main__":
    from tests import thorough  # pytest's own module, whose key conftest.py uses

    sys.exit(thorough.write_list(str(Path(__file__).parent)))
