"""A server that other machines reach needs something that keeps strangers out, or a word that it is meant so."""

import pytest

from modules.access import access_of, check_protected, is_loopback
from modules.errors import InvalidValueError
from modules.flags.flags import parse_flags


@pytest.mark.parametrize(
    "words", ["--listen", "--server-name 192.168.1.5", "--server-name ::", "--listen --api-auth a:b"]
)
def test_an_open_server_is_refused_and_told_the_ways_on(words: str) -> None:
    with pytest.raises(InvalidValueError) as error:
        check_protected(parse_flags(words.split()))
    assert all(way in str(error.value) for way in ("--gradio-auth", "--access-token", "--i-know-this-is-open"))


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--server-name localhost",
        "--server-name ::1",
        "--listen --gradio-auth a:b",
        "--listen --nowebui --api-auth a:b",
        "--listen --access-token",
        "--listen --access-token secret",
        "--listen --i-know-this-is-open",
    ],
)
def test_these_are_not(words: str) -> None:
    check_protected(parse_flags(words.split()))


def test_an_open_server_says_so() -> None:
    assert "--i-know-this-is-open" in access_of(parse_flags(["--listen", "--i-know-this-is-open"])).notices[0]
    assert access_of(parse_flags(["--listen", "--access-token"])).notices == ()
    assert access_of(parse_flags([])).notices == ()


@pytest.mark.parametrize(
    ("host", "answer"), [("127.0.0.1", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)]
)
def test_loopback(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer
