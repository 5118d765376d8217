"""Network tags, against the recordings."""

from typing import Any

import pytest

from modules.prompting.extra_networks import PromptTag, extract_tags
from tests.growth import assert_linear
from tests.prompting.recordings import PARTS


@pytest.mark.parametrize("case", PARTS["extra_networks"], ids=lambda case: case["prompt"])
def test_adapters_as_recorded(case: dict[str, Any]) -> None:
    text, tags = extract_tags(case["prompt"])
    found = {
        kind: [{"items": list(tag.items), "positional": list(tag.positional), "named": tag.named} for tag in of_kind]
        for kind, of_kind in tags.items()
    }
    assert (text, found) == (case["text"], case["nets"])


def test_named_arguments_are_told_from_positional_ones() -> None:
    _, tags = extract_tags("x <lora:name:te=0.5:1:a=b=c>")
    assert tags["lora"] == [PromptTag(("name", "te=0.5", "1", "a=b=c"))]
    assert tags["lora"][0].named == {"te": "0.5"}
    assert tags["lora"][0].positional == ("name", "1", "a=b=c")


@pytest.mark.parametrize("text", ["<lora:x", "<lora>", "<lora:>", "a < b > c", "<:x>", "<b>"])
def test_other_angle_brackets_stay_text(text: str) -> None:
    assert extract_tags(text) == (text, {})


@pytest.mark.parametrize("unit", ["<a:", "<lora:x:1>", "<<<", "<a:>"])
def test_time_grows_with_the_length_and_no_faster(unit: str) -> None:
    assert_linear(extract_tags, unit)
