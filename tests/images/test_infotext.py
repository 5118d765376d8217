"""Infotext against the recordings, and by properties."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.images.infotext import (
    FIELD_ORDER,
    format_infotext,
    order_fields,
    parse_infotext,
    quote,
    unquote,
)
from modules.images.infotext_defaults import DEFAULTS, parse_version, uses_emphasis
from tests.cases import for_each

REFERENCE = Path(__file__).parents[1] / "reference"
PARTS: dict[str, Any] = json.loads((REFERENCE / "parts.json").read_text(encoding="utf-8"))


def _recorded_infotexts() -> list[str]:
    cases = json.loads((REFERENCE / "cases.json").read_text(encoding="utf-8"))["cases"]
    infos = [case["info"] for case in cases if isinstance(case.get("info"), dict)]
    return sorted({text for info in infos for text in info.get("infotexts", ())})


INFOTEXTS = _recorded_infotexts()
OUR_DEFAULTS = {"FP8 format", "FP8 skip", "FP8 text encoder", "Compute dtype", "Compute mode", "LoRA mode"}


@pytest.mark.parametrize("case", PARTS["infotext_parse"], ids=lambda case: case["text"][:40])
def test_parses_as_recorded(case: dict[str, Any]) -> None:
    parsed = parse_infotext(case["text"])
    assert {key: value for key, value in parsed.items() if key not in OUR_DEFAULTS} == case["result"]


@pytest.mark.parametrize("case", PARTS["quote"], ids=lambda case: case["text"])
def test_quotes_as_recorded(case: dict[str, str]) -> None:
    assert quote(case["text"]) == case["quoted"]
    assert unquote(case["quoted"]) == case["back"]


def written_fields(text: str) -> dict[str, object]:
    """The fields that stand in the text itself, sizes put together again."""
    parsed = parse_infotext(text, backward_compatible=False)
    fields: dict[str, object] = {}
    for key, value in parsed.items():
        name, _, part = key.rpartition("-")
        if key in ("Prompt", "Negative prompt") or f"{name or key}:" not in text.rpartition("\n")[2]:
            continue
        if part == "1":
            fields[name] = f"{value}x{parsed[f'{name}-2']}"
        elif part != "2":
            fields[key] = value
    return fields


@for_each("text", INFOTEXTS, ids=lambda text: text[-60:])
def test_recorded_infotexts_come_back_to_the_letter(text: str) -> None:
    parsed = parse_infotext(text)
    assert parsed["Version"] == "1.10.1"
    fields = written_fields(text)
    if "<lora" not in text and "Hires" not in text and "Inpaint" not in text:
        assert list(order_fields(fields)) == list(fields)
    stripped = "\n".join(map(str.strip, text.split("\n")))  # outer blanks of a line do not survive reading
    assert format_infotext(str(parsed["Prompt"]), str(parsed["Negative prompt"]), fields) == stripped


def test_there_are_recorded_infotexts() -> None:
    assert len(INFOTEXTS) > 100


def test_fields_that_are_none_are_left_out_and_equal_ones_shortened() -> None:
    fields = {"Steps": 20, "Seed": None, "Flag": "Flag", "Lora hashes": "a: 1, b: 2"}
    assert format_infotext("p", "", fields) == 'p\nSteps: 20, Flag, Lora hashes: "a: 1, b: 2"'


def test_an_empty_prompt_leaves_no_empty_line() -> None:
    assert format_infotext("", "", {"Steps": 1}) == "Steps: 1"
    assert format_infotext("", "bad", {"Steps": 1}) == "Negative prompt: bad\nSteps: 1"
    assert format_infotext("only", "", {}) == "only"


def test_other_fields_stand_before_the_version() -> None:
    ordered = order_fields({"Version": "1", "Eta": 0.5, "Seed": 1, "User": "u", "Steps": 2})
    assert list(ordered) == ["Steps", "Seed", "Eta", "Version", "User"]
    assert len(set(FIELD_ORDER)) == len(FIELD_ORDER)


def test_a_negative_prompt_spans_lines() -> None:
    parsed = parse_infotext("a\n\n b \nNegative prompt: c\nd\nSteps: 1, Sampler: Euler, Seed: 2")
    assert parsed["Prompt"] == "a\n\nb"
    assert parsed["Negative prompt"] == "c\nd"


def test_a_last_line_with_two_fields_belongs_to_the_prompt() -> None:
    assert parse_infotext("a\nb: 1, cc: 2")["Prompt"] == "a\nb: 1, cc: 2"


def test_skipped_fields_are_left_out() -> None:
    parsed = parse_infotext("a\nSteps: 1, Sampler: Euler, Seed: 2", skip_fields=("Seed", "RNG"))
    assert "Seed" not in parsed
    assert "RNG" not in parsed
    assert parsed["Steps"] == "1"


@pytest.mark.parametrize(
    ("version", "extra", "expected"),
    [
        ("v1.5.2", "", {"Old prompt editing timelines": True, "Pad conds v0": True, "Downcast alphas_cumprod": True}),
        ("v1.6.0", "", {"Downcast alphas_cumprod": True}),
        ("1.7.0-224-gabc", "", {"Downcast alphas_cumprod": True}),
        ("1.7.0-225-gabc", "", {}),
        ("1.7.0-300", ", Refiner: x", {"Refiner switch by sampling steps": True, "Refiner": "x"}),
        ("1.8.0", ", Refiner: x", {"Refiner": "x"}),
        ("f0.0.17", "", {}),
    ],
)
def test_old_versions_switch_old_behaviour_on(version: str, extra: str, expected: dict[str, object]) -> None:
    text = f"a [b:c:3]\nSteps: 1, Sampler: DDIM, Seed: 2, Version: {version}{extra}"
    base = {**DEFAULTS, "Emphasis": "Original", "Prompt": "a [b:c:3]", "Negative prompt": ""}
    written = {"Steps": "1", "Sampler": "DDIM", "Seed": "2", "Version": version}
    assert parse_infotext(text) == base | written | expected
    plain = parse_infotext(text, backward_compatible=False)
    assert "Downcast alphas_cumprod" not in plain


def test_the_first_pass_size_becomes_a_hires_size() -> None:
    parsed = parse_infotext("a\nSteps: 1, Sampler: Euler, Size: 1024x512, First pass size: 640x320")
    sizes = [parsed[f"{key}-{part}"] for key in ("Size", "Hires resize") for part in (1, 2)]
    assert sizes == [640, 320, 1024, 512]


def test_old_hires_sizes_make_the_size_the_final_one() -> None:
    text = "a\nSteps: 1, Sampler: Euler, Size: 512x512, Hires resize: 1024x768"
    parsed = parse_infotext(text, old_hires_sizes=True)
    assert (parsed["Size-1"], parsed["Size-2"]) == (1024, 768)
    assert parse_infotext(text)["Size-1"] == "512"


def test_fp8_without_a_word_on_the_cache_means_no_cache() -> None:
    parsed = parse_infotext("a\nSteps: 1, Sampler: Euler, FP8 weight: Enable")
    assert parsed["FP8 format"] == "fp8_e4m3fn"
    assert parsed["Cache FP16 weight for LoRA"] == "False"


@pytest.mark.parametrize(
    ("prompt", "emphasised"),
    [
        ("a cat", False),
        ("a (cat)", True),
        ("a [cat]", True),
        (r"a \(cat\)", False),
        ("()", False),
        ("(a:1.0) b", False),
        ("((a:1.0))", True),
        ("(a:1.2)", True),
        ("unclosed (a", True),
    ],
)
def test_emphasis_is_seen(prompt: str, emphasised: bool) -> None:
    assert uses_emphasis(prompt) is emphasised


@pytest.mark.parametrize(
    ("text", "version"), [("v1.10.1", (1, 10, 1, 0)), ("1.7.0-225-gab", (1, 7, 0, 225)), ("", None), ("x1.2.3", None)]
)
def test_versions_are_read(text: str, version: tuple[int, int, int, int] | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["a b " * 30_000, "a-" * 50_000 + ":", ":" * 100_000, '"\\' * 50_000, "(" * 100_000])
def test_long_text_that_is_no_infotext_is_read_quickly(text: str) -> None:
    begin = time.perf_counter()
    parse_infotext(text)
    assert time.perf_counter() - begin < 20


@pytest.mark.parametrize("size", ["Size-1: x, First pass size: 0x0", f"Size: {'9' * 5000}x1, First pass size: 0x0"])
def test_sizes_that_are_none_do_no_harm(size: str) -> None:
    parsed = parse_infotext(f"a\nSteps: 1, Seed: 2, {size}")
    assert (parsed["Size-1"], parsed["Hires resize-1"]) == (512, 512)


@given(st.text())
def test_any_text_parses(text: str) -> None:
    assert "Prompt" in parse_infotext(text)


@given(st.text())
def test_any_value_survives_quoting(text: str) -> None:
    assert unquote(quote(text)) == text


KEYS = st.from_regex(r"[A-Za-z][A-Za-z0-9 /]{1,20}[A-Za-z]", fullmatch=True).filter(lambda key: key.strip() == key)
VALUES = st.text(min_size=1).filter(lambda text: not re.fullmatch(r"[0-9]+x[0-9]+", text))
PROMPTS = st.text(alphabet=st.characters(exclude_categories=["C", "Z"]), max_size=60).map(str.strip)


@given(PROMPTS, PROMPTS, st.dictionaries(KEYS, VALUES, min_size=3, max_size=8))
def test_what_is_written_is_read_back(prompt: str, negative: str, fields: dict[str, str]) -> None:
    fields = {f"X{key}": value for key, value in fields.items()}  # none of the names with a meaning
    fields = {key: value for key, value in fields.items() if key != value}
    if len(fields) < 3 or prompt.startswith("Negative prompt:"):
        return
    parsed = parse_infotext(format_infotext(prompt, negative, fields))
    assert parsed["Prompt"] == prompt
    assert parsed["Negative prompt"] == negative
    assert {key: parsed[key] for key in fields} == fields
