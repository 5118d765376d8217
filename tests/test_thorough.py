"""What is left out by default is held by a test that is not."""

from __future__ import annotations

import pytest

from tests.thorough import HOLDERS, LIST


def test_each_thorough_test_has_a_default_one_that_holds_the_same(request: pytest.FixtureRequest) -> None:
    """In the files that this run collects; the holder may be in one that it does not."""
    found = request.config.stash[HOLDERS]
    files = {item.nodeid.partition("::")[0] for item in request.session.items}
    known = dict(line.split(" <- ", 1) for line in LIST.read_text(encoding="utf-8").splitlines())
    faults = [f"{test} is listed and there is no such thorough test" for test in known if test not in found]
    faults = [fault for fault in faults if fault.partition("::")[0] in files]
    for test, holder in found.items():
        listed = known.get(test)
        if listed is None:
            faults.append(f"{test} is not listed")
        elif not listed:
            faults.append(f"{test} is held by no default test: name one with `held_by` in its mark")
        elif listed != holder and listed.partition("::")[0] in files:
            faults.append(f"{test} is held by {holder or 'no default test'}, listed is {listed}")
    assert not faults, "\n".join([*faults, "`python -m tests.thorough` writes the list again."])
