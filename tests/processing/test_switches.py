"""Changing between checkpoints leaves nothing behind: measured where no other test has a part in the memory."""

import pytest

from modules.memory.timeline import resident_bytes
from tests.forked import call_forked
from tests.processing.switching import all_ways

MAX_GROWTH = 1.05
MODEL_BYTES = 84_000_000  # of the recorded checkpoint; the families' are smaller

pytestmark = pytest.mark.skipif(resident_bytes() is None, reason="resident memory is only known on Linux")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int]]:
    """By way of changing: resident bytes after the first changes, and after the last."""
    found: dict[str, tuple[int, int]] = call_forked(all_ways, tmp_path_factory.mktemp("models"))
    return found


@pytest.mark.parametrize("way", ["one at a time", "two kept", "three families"])
def test_switches_do_not_grow(way: str, found: dict[str, tuple[int, int]]) -> None:
    first, last = found[way]
    assert last < first * MAX_GROWTH
    assert last - first < MODEL_BYTES / 4


def test_what_is_closed_leaves_the_memory(found: dict[str, tuple[int, int]]) -> None:
    """Two models kept take one model more, and are gone when the next engine works."""
    one, two, mixed = (found[way][1] for way in ("one at a time", "two kept", "three families"))
    assert two > one + MODEL_BYTES / 2
    assert mixed < two - MODEL_BYTES
