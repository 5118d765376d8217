"""Attention weights, against the recordings and by properties."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.prompting.attention import is_break, parse_attention
from tests.cases import for_each
from tests.growth import assert_linear
from tests.prompting.attention_printer import print_attention
from tests.prompting.recordings import PARTS

PIECES = [
    "a",
    "b c",
    "(",
    ")",
    "[",
    "]",
    ":",
    "1.2",
    "-.5",
    "1.2.3",
    ")",
    "\\",
    "BREAK",
    " ",
    "\n",
    ":0)",
    ":1.3)",
    "猫",
]
NOISE = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@for_each("case", PARTS["attention"], ids=lambda case: repr(case["prompt"]))
def test_attention_as_recorded(case: dict[str, Any]) -> None:
    assert parse_attention(case["prompt"]) == [(text, weight) for text, weight in case["result"]]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (r"\(a\) \[b\] \\ \c", [(r"(a) [b] \ c", 1.0)]),
        ("a) b]", [("a) b]", 1.0)]),
        ("a:1.3)", [("a:1.3)", 1.0)]),
        ("(a:1.2.3)", [("a:1.2.3", 1.1)]),
        ("(a:" + "9" * 400 + ")", [("a:" + "9" * 400, 1.1)]),
        ("BREAKs aBREAK", [("BREAKs aBREAK", 1.0)]),
        ("BREAK", [("", 1.0), ("BREAK", -1.0), ("", 1.0)]),
    ],
)
def test_odd_text_degrades_to_text(prompt: str, expected: list[tuple[str, float]]) -> None:
    assert parse_attention(prompt) == expected


def test_only_an_unweighted_break_ends_a_chunk() -> None:
    assert [is_break(piece) for piece in parse_attention("a BREAK b")] == [False, True, False]
    assert not any(is_break(piece) for piece in parse_attention("(a BREAK b:1.2)"))


@given(st.one_of(st.text(), NOISE))
def test_any_text_parses_and_the_printed_weights_parse_to_the_same(text: str) -> None:
    pieces = parse_attention(text)
    assert pieces
    assert all(math.isfinite(weight) for _, weight in pieces)
    assert parse_attention(print_attention(pieces)) == pieces


@given(
    st.lists(
        st.tuples(st.text("abc,: \\()[]", min_size=1), st.floats(-2, 2).filter(lambda weight: weight != 0)), min_size=1
    )
)
def test_weights_survive_printing(pieces: list[tuple[str, float]]) -> None:
    weights = {weight for _, weight in parse_attention(print_attention(pieces))}
    assert weights == {weight for _, weight in pieces}


@pytest.mark.parametrize("unit", ["(a", "((", "[a", "a)", "(a:1.2)", ":" + " " * 50, " ", "BREAK ", "\\", "1", ":1"])
def test_time_grows_with_the_length_and_no_faster(unit: str) -> None:
    assert_linear(parse_attention, unit)
