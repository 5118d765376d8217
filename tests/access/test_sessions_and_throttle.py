"""Logins end, guesses wait longer and longer, and both tables stay bounded."""

import pytest

from modules.access import sessions as sessions_module
from modules.access import throttle as throttle_module
from modules.access.roles import Identity
from modules.access.sessions import Sessions
from modules.access.throttle import LONGEST_WAIT_S, OF_ADDRESS, OF_PAIR, Throttle


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


ANNA = Identity("anna", stamp="1")


def test_a_session_ends_when_it_is_not_used_and_in_any_case() -> None:
    clock = Clock()
    sessions = Sessions(idle_s=100, longest_s=350, now=clock)
    secret = sessions.open(ANNA)
    for _ in range(3):
        clock.now += 90
        assert (found := sessions.find(secret)) is not None and found.name == "anna"
    clock.now += 90  # used all the time, but too old
    assert sessions.find(secret) is None
    idle = sessions.open(ANNA)
    clock.now += 60
    assert sessions.find(idle, is_use=False) is not None  # looking how far something is does not count
    clock.now += 60
    assert sessions.find(idle) is None


def test_a_session_ends_with_a_logout_and_is_kept_as_a_hash() -> None:
    sessions = Sessions(100, 100)
    secret = sessions.open(ANNA)
    assert secret not in repr(vars(sessions))
    sessions.close(secret)
    assert sessions.find(secret) is None and sessions.find("") is None


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "MAX_SESSIONS_OF_USER", 2)
    monkeypatch.setattr(sessions_module, "MAX_SESSIONS", 3)
    sessions = Sessions(100, 100)
    first, *others = [sessions.open(ANNA) for _ in range(3)]
    assert sessions.find(first) is None and all(sessions.find(one) for one in others)
    for name in ("b", "c"):
        sessions.open(Identity(name))
    assert len(sessions._sessions) == 3


def test_each_wrong_guess_doubles_the_wait() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    waits = []
    for _ in range(OF_PAIR.free + 12):
        throttle.failed("1.2.3.4", "anna")
        waits.append(throttle.wait_s("1.2.3.4", "anna"))
        clock.now += waits[-1]
        assert throttle.wait_s("1.2.3.4", "anna") == 0
    assert waits[: OF_PAIR.free] == [*[0] * (OF_PAIR.free - 1), 1]
    assert waits[OF_PAIR.free : OF_PAIR.free + 4] == [2, 4, 8, 16] and waits[-1] == LONGEST_WAIT_S
    assert throttle.wait_s("1.2.3.5", "anna") == 0  # nobody is locked out by others
    throttle.succeeded("1.2.3.4", "anna")
    throttle.failed("1.2.3.4", "anna")
    clock.now += 2 * throttle_module.FORGOTTEN_AFTER_S
    throttle.failed("1.2.3.4", "ben")
    assert throttle.wait_s("1.2.3.4", "ben") == 0


def test_many_names_from_one_address_wait_too() -> None:
    throttle = Throttle(Clock())
    for number in range(OF_ADDRESS.free):
        throttle.failed(f"2001:db8::{number:x}", f"name{number}")  # one machine may have all of these addresses
    assert throttle.wait_s("2001:db8::ffff", "anna") >= 1 and throttle.wait_s("2001:db8:1::", "anna") == 0


def test_the_table_of_guesses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle_module, "MAX_ENTRIES", 10)
    throttle = Throttle(Clock())
    for number in range(100):
        throttle.failed(f"10.0.0.{number}", "x" * 100_000)
    assert len(throttle._addresses) == len(throttle._pairs) == 10
    assert all(len(name) <= throttle_module.MAX_NAME for _, name in throttle._pairs)
