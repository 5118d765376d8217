"""Prompts joined by AND, against the recordings and by properties."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.prompting.composition import WeightedText, split_composition
from tests.growth import assert_linear
from tests.prompting.recordings import PARTS


@pytest.mark.parametrize("case", PARTS["multicond"], ids=lambda case: repr(case["prompt"]))
def test_composition_as_recorded(case: dict[str, Any]) -> None:
    expected = tuple(WeightedText(case["flat"][index], weight) for index, weight in case["indexes"][0])
    assert split_composition(case["prompt"]) == expected


@given(st.text())
def test_any_text_has_parts(text: str) -> None:
    assert split_composition(text)


@pytest.mark.parametrize("unit", [" ", "AND ", ":", ": 1", "a AND\n"])
def test_time_grows_with_the_length_and_no_faster(unit: str) -> None:
    assert_linear(split_composition, unit)
