"""Prompt editing and alternation, against the recordings and by properties."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.prompting.schedule import parse_schedule
from tests.cases import for_each
from tests.growth import assert_linear
from tests.prompting.recordings import PARTS

PIECES = ["a", "b c", "[", "]", "(", ")", ":", "|", "\\", "0.5", "3", "-1", " ", "\n", ".", "1e999", "猫", "\0", "AND"]
NOISE = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


def schedule(prompt: str, steps: int, **options: Any) -> list[tuple[int, str]]:
    return [(entry.end_at_step, entry.text) for entry in parse_schedule(prompt, steps, **options)]


@for_each("case", PARTS["schedules"], ids=lambda case: f"{case['prompt']!r}-{case['steps']}")
def test_schedule_as_recorded(case: dict[str, Any]) -> None:
    result = schedule(case["prompt"], case["steps"], hires_steps=case["hires_steps"], old_timelines=case["old"])
    assert result == [(end, text) for end, text in case["result"]]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a [unclosed [b:c:3]", [(3, "a [unclosed b"), (10, "a [unclosed c")]),
        ("[a:b:c:3] [d:e:2]", [(2, "[a:b:c:3] d"), (10, "[a:b:c:3] e")]),
        ("((x][:b:c [d:3]", [(3, "((x][:b:c "), (10, "((x][:b:c d")]),
        ("[a (b] c:d:3]", [(10, "[a (b] c:d:3]")]),
        ("(one [two) three:four:3]", [(10, "(one [two) three:four:3]")]),
        ("a [[[b]]:2]", [(2, "a "), (10, "a [[b]]")]),
        ("[x:+2]", [(2, ""), (10, "x")]),
        ("[x:2e0]", [(2, ""), (10, "x")]),
        ("[a|b:3]", [(10, "[a|b:3]")]),
    ],
)
def test_unfitting_brackets_stay_text(prompt: str, expected: list[tuple[int, str]]) -> None:
    assert schedule(prompt, 10) == expected


@pytest.mark.parametrize("stray", ["one | two", "a (b | c)", "back\\", "back\\\n"])
def test_stray_bar_or_backslash_makes_the_whole_prompt_text(stray: str) -> None:
    prompt = f"{stray} [d:e:3]" if not stray.endswith("\\") else f"[d:e:3] {stray}"
    assert schedule(prompt, 10) == [(10, prompt)]


def test_hires_pass_has_shares_from_one_to_two_and_steps_after_the_first_pass() -> None:
    assert schedule("[a:b:1.5]", 10, hires_steps=8) == [(4, "a"), (8, "b")]
    assert schedule("[a:b:13]", 10, hires_steps=8) == [(3, "a"), (8, "b")]


def test_numbers_beyond_every_float_are_clamped() -> None:
    assert schedule("[a:b:1e999]", 5) == [(5, "a")]
    assert schedule("[a:b:-1.0e999]", 5) == [(5, "b")]


@given(
    prompt=st.one_of(st.text(), NOISE),
    steps=st.integers(1, 60),
    hires=st.none() | st.integers(1, 60),
    old=st.booleans(),
)
def test_every_step_is_covered_once(prompt: str, steps: int, hires: int | None, old: bool) -> None:
    ends = [entry.end_at_step for entry in parse_schedule(prompt, steps, hires, old)]
    assert ends == sorted(set(ends))
    assert ends[0] >= 1
    assert ends[-1] == (steps if hires is None or old else hires)


@given(
    before=st.text("abc ", max_size=8),
    after=st.text("abc ", max_size=8),
    when=st.integers(1, 30),
    steps=st.integers(1, 30),
)
def test_an_edit_switches_after_its_step(before: str, after: str, when: int, steps: int) -> None:
    entries = schedule(f"x[{before}:{after}:{when}]y", steps)
    texts = {step: next(text for end, text in entries if step <= end) for step in range(1, steps + 1)}
    assert texts == {step: f"x{before if step <= when else after}y" for step in range(1, steps + 1)}


@given(
    options=st.lists(st.text("abc ", max_size=5), min_size=2, max_size=5),
    steps=st.integers(1, 20),
)
def test_an_alternation_takes_turns(options: list[str], steps: int) -> None:
    expected = [(step, options[(step - 1) % len(options)]) for step in range(1, steps + 1)]
    assert schedule(f"[{'|'.join(options)}]", steps) == expected


@pytest.mark.parametrize(
    "unit", ["[", "(a", "[a:", "[a|", "[a:b:3] ", "[a|b] ", "x, ", "]", "\\[", "|", ":", "[a]", "((a)"]
)
def test_time_grows_with_the_length_and_no_faster(unit: str) -> None:
    assert_linear(lambda prompt: parse_schedule(prompt, 20), unit)


def test_deep_nesting_needs_no_recursion() -> None:
    depth = 10_000
    prompt = "[x:" * depth + "end" + ":2]" * depth
    assert schedule(prompt, 4) == [(2, "x"), (4, "end")]
