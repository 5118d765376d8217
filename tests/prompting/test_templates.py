"""Choices in prompts: the grammar, drawing by seed, all combinations."""

import re
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.errors import InvalidValueError, UnknownNameError
from modules.prompting.templates import all_prompts, has_choices, parse_template, random_prompt
from modules.prompting.wildcards import WildcardBook

NONE = WildcardBook()


def book(folder: Path, files: Mapping[str, str]) -> WildcardBook:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return WildcardBook((folder,))


def drawn(template: str, wildcards: WildcardBook = NONE, times: int = 200) -> Counter[str]:
    parsed = parse_template(template)
    return Counter(random_prompt(parsed, wildcards, seed) for seed in range(times))


def every(template: str, wildcards: WildcardBook = NONE, limit: int = 1000) -> list[str]:
    return all_prompts(parse_template(template), wildcards, limit)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("a {red|blue} {cat|dog}", ["a red cat", "a red dog", "a blue cat", "a blue dog"]),
        ("{ a | b }", ["a", "b"]),
        ("{2$$a|b|c}", ["a, b", "a, c", "b, c"]),
        ("{2$$ and $$a|b|c}", ["a and b", "a and c", "b and c"]),
        ("{1-2$$a|b}", ["a", "b", "a, b"]),
        ("{-1$$a|b}", ["", "a", "b"]),
        ("{2-$$a|b|c}", ["a, b", "a, c", "b, c", "a, b, c"]),
        ("{9$$a|b}", ["a, b"]),
        ("{a|{b|c}}", ["a", "b", "c"]),
        ("{0.3::a|b}", ["a", "b"]),
        ("x{|y}", ["x", "xy"]),
        ("<lora:ink:{0.5|1}>", ["<lora:ink:0.5>", "<lora:ink:1>"]),
        ("({a|b}:1.2) [c|d]", ["(a:1.2) [c|d]", "(b:1.2) [c|d]"]),
    ],
)
def test_all_prompts_of_a_template(template: str, expected: list[str]) -> None:
    assert every(template) == expected
    assert (
        set(drawn(template)) <= {", ".join(reversed(text.split(", "))) for text in expected} | set(expected)
        or "and" in template
        or "2-" in template
    )


@pytest.mark.parametrize("text", ["", "a {cat}", "{{{masterpiece}}}", "a { b", "a } b", "[a|b]", "a_b__", "100 $$ {5}"])
def test_braces_without_a_choice_are_text(text: str) -> None:
    assert not has_choices(text)
    assert random_prompt(parse_template(text), NONE, 1) == text


def test_escaped_signs_stand_as_they_are() -> None:
    assert every(r"\{a\|b\} {c\|d|e} \__f__ \(g\)") == [r"{a|b} c|d __f__ \(g\)", r"{a|b} e __f__ \(g\)"]


def test_a_seed_gives_the_same_prompt_and_others_give_others() -> None:
    parsed = parse_template("{a|b|c|d} {1-3$$e|f|g}")
    assert [random_prompt(parsed, NONE, seed) for seed in range(20)] == [
        random_prompt(parsed, NONE, seed) for seed in range(20)
    ]
    assert len({random_prompt(parsed, NONE, seed) for seed in range(20)}) > 5


def test_weights_are_followed() -> None:
    seen = drawn("{3::a|b|0::c}", times=2000)
    assert "c" not in seen and 2.3 < seen["a"] / seen["b"] < 3.9


def test_several_of_a_choice_are_different_ones() -> None:
    for text in drawn("{3$$a|b|c|d}"):
        assert len(set(text.split(", "))) == 3


def test_wildcards_by_file_folder_and_key(tmp_path: Path) -> None:
    wildcards = book(
        tmp_path,
        {
            "colors.txt": "# warm\nred\n\n 2::orange \n",
            "clothes/hats.txt": "a {big|small} hat\n",
            "all.yaml": "artists:\n  dutch: [Vermeer, Hals]\n  finnish:\n    - Edelfelt\nsizes: [1, 2]\n",
            "broken.yaml": "a: [",
        },
    )
    assert wildcards.names == [
        *("all/artists/dutch", "all/artists/finnish", "all/sizes"),
        *("artists/dutch", "artists/finnish", "clothes/hats", "colors", "sizes"),
    ]
    assert every("__colors__", wildcards) == ["red", "orange"]
    assert every("__Clothes/Hats__", wildcards) == ["a big hat", "a small hat"]
    assert every("__artists/*__", wildcards) == ["Vermeer", "Hals", "Edelfelt"]
    assert every("{2$$__colors__}", wildcards) == ["red, orange"]
    assert every("__colors__ish 非__colors__色", wildcards)[0] == "redish 非red色"
    assert every("__sizes__", wildcards) == ["1", "2"]
    assert drawn("__colors__", wildcards, 300)["orange"] > 150


def test_a_missing_wildcard_names_the_nearest_and_where_it_belongs(tmp_path: Path) -> None:
    wildcards = book(tmp_path, {"colors.txt": "red"})
    with pytest.raises(UnknownNameError, match=rf"no wildcard __colours__. .*__colors__.*{re.escape(str(tmp_path))}"):
        every("a __colours__ cat", wildcards)
    with pytest.raises(UnknownNameError, match="There is no wildcard __x__"):
        random_prompt(parse_template("__x__"), NONE, 1)
    assert every("<lora:my__x__lora:1>", wildcards) == ["<lora:my__x__lora:1>"]


def test_a_word_with_two_double_underscores_is_text(tmp_path: Path) -> None:
    wildcards = book(tmp_path, {"hands.txt": "fingers", "v2.txt": "third"})
    for word in ("bad__hands__v2", "x__y__z", "1__hands__2", "é__hands__é", "a__b__hands__v2", "x__y__", "__y__z"):
        assert every(f"my {word} {{{word}|b}}", wildcards) == [f"my {word} {word}", f"my {word} b"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "cp1252"])
def test_a_file_is_read_in_its_encoding(tmp_path: Path, encoding: str) -> None:
    text = "une fenêtre très étroite\nun château à l'été\n"
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / "w.txt").write_bytes(f"{mark}{text}".encode(encoding))
    (tmp_path / "y.yaml").write_bytes(f"{mark}inner: [{text.splitlines()[0]}]".encode(encoding))
    assert WildcardBook((tmp_path,)).texts("w") == tuple(text.splitlines())
    assert WildcardBook((tmp_path,)).texts("y/inner") == (text.splitlines()[0],)


def test_an_empty_wildcard_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="has no texts"):
        every("__empty__", book(tmp_path, {"empty.txt": "# nothing\n"}))


def test_a_wildcard_that_refers_to_itself_is_named_with_its_way(tmp_path: Path) -> None:
    wildcards = book(tmp_path, {"a.txt": "one __b__", "b.txt": "two __A__", "c.txt": "__*__ again"})
    for make in (lambda text: every(text, wildcards), lambda text: drawn(text, wildcards)):
        with pytest.raises(InvalidValueError, match="refers to itself: __a__ → __b__ → __a__"):
            make("__a__")
        with pytest.raises(InvalidValueError, match=r"leads back to itself|refers to itself"):
            make("{2$$__c__}")


def test_a_list_that_may_use_another_of_its_folder_does_not_refer_to_itself(tmp_path: Path) -> None:
    wildcards = book(tmp_path, {"x/a.txt": "a __x/b__", "x/b.txt": "b"})
    assert every("__x/*__", wildcards) == ["a b", "b"]


def test_only_as_many_prompts_are_made_as_asked_for(tmp_path: Path) -> None:
    wildcards = book(tmp_path, {"n.txt": "\n".join(str(number) for number in range(10_000))})
    assert every("__n__ __n__ __n__ {3$$__n__} {8$$a|b|c|d|e|f|g|h|i|j|k}", wildcards, 3)[0].startswith("0 0 0 0, 1, 2")


def test_a_prompt_without_end_is_a_sentence(tmp_path: Path) -> None:
    names = [f"w{number}" for number in range(30)]
    files = {f"{name}.txt": f"long text __{after}__ __{after}__" for name, after in pairwise(names)}
    wildcards = book(tmp_path, {**files, "w29.txt": "end " * 1000})
    with pytest.raises(InvalidValueError, match="more than 1,000,000 characters"):
        random_prompt(parse_template("__w0__"), wildcards, 1)


@given(st.text(alphabet="ab{}|$2-:._\\<> ", max_size=60), st.integers())
def test_any_text_becomes_a_prompt_or_a_sentence(text: str, seed: int) -> None:
    try:
        prompt = random_prompt(parse_template(text), NONE, seed)
        assert prompt == random_prompt(parse_template(text), NONE, seed)
        all_prompts(parse_template(text), NONE, 5)
    except UnknownNameError as error:
        assert "There is no wildcard" in str(error)
