"""Styles: read, applied, taken off again, saved without losing the old file."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.errors import InvalidValueError, OutputError, UnknownNameError
from modules.prompting.styles import Style, StyleBook
from tests.prompting.recordings import MODELS


@pytest.fixture
def book() -> StyleBook:
    return StyleBook.read([MODELS / "styles.csv"])


def test_styles_as_recorded(book: StyleBook) -> None:
    assert list(book.styles.values()) == [
        Style("style one", "{prompt}, oil painting, masterpiece", "photo"),
        Style("style two", "cinematic lighting, 35mm", "ugly"),
    ]


def test_applied_as_recorded(book: StyleBook) -> None:
    prompt = book.apply_to_prompt("a red cat sitting on a blue chair, detailed", ["style one"])
    assert prompt == "a red cat sitting on a blue chair, detailed, oil painting, masterpiece"
    assert book.apply_to_negative("blurry, low quality", ["style one"]) == "blurry, low quality, photo"
    both = ["style one", "style two"]
    assert book.apply_to_prompt("cat", both) == "cat, oil painting, masterpiece, cinematic lighting, 35mm"
    assert book.apply_to_negative("", both) == "photo, ugly"


def test_styles_come_off_in_the_order_they_went_on(book: StyleBook) -> None:
    names = ["style one", "style two"]
    prompt, negative = book.apply_to_prompt("cat", names), book.apply_to_negative("dog", names)
    extracted = book.extract(prompt, negative)
    assert (extracted.names, extracted.prompt, extracted.negative_prompt) == (tuple(names), "cat", "dog")


def test_a_style_is_there_only_if_both_prompts_show_it(book: StyleBook) -> None:
    extracted = book.extract("cat, cinematic lighting, 35mm", "dog")
    assert (extracted.names, extracted.prompt) == ((), "cat, cinematic lighting, 35mm")


words = st.text("abc", min_size=1, max_size=4)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=3), words, words)
def test_extraction_undoes_application(parts: list[tuple[str, str]], prompt: str, negative: str) -> None:
    styles = [Style(f"s{i}", "{prompt}, " + f"<{i}{a}>", f"<{i}{b}>") for i, (a, b) in enumerate(parts)]
    book = StyleBook([(Path("styles.csv"), styles)])
    names = [style.name for style in styles]
    extracted = book.extract(book.apply_to_prompt(prompt, names), book.apply_to_negative(negative, names))
    assert (list(extracted.names), extracted.prompt, extracted.negative_prompt) == (names, prompt, negative)


def test_unknown_style_lists_the_known_ones(book: StyleBook) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'style one'"):
        book.apply_to_prompt("cat", ["style on"])


def test_files_with_comments_old_columns_and_a_byte_order_mark(tmp_path: Path) -> None:
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text("name,text\n# a note,\nplain,words\n,nameless\n", encoding="utf-8-sig")
    new.write_text('name,prompt,negative_prompt\nplain,"two\nlines",\n', encoding="utf-8")
    book = StyleBook.read([old, new, tmp_path / "missing.csv"])
    assert book.get("plain") == Style("plain", "two\nlines", "")
    assert StyleBook.read([old]).styles == {"plain": Style("plain", "words")}


@pytest.mark.parametrize("text", ["name;prompt;negative_prompt\nA;b;c\n", "A,b,c\nB,d,e\n", "name,text of it\nA,b\n"])
def test_a_file_with_other_columns_is_damaged_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "styles.csv"
    path.write_text(text)
    book = StyleBook.read([path])
    (notice,) = book.notices
    assert "its first line is not name,prompt,negative_prompt" in notice and not book.styles
    book.save()
    assert path.read_text() == text
    for name in ("new", "another"):
        StyleBook.read([path]).with_style(Style(name, "x")).save()
    assert list(StyleBook.read([path]).styles) == ["new", "another"]
    assert path.with_name("styles.csv.corrupt-1").read_text() == text


def test_a_file_in_utf_16_is_read(tmp_path: Path) -> None:
    path = tmp_path / "styles.csv"
    path.write_bytes("name,prompt,negative_prompt\nÉté,soleil,\n".encode("utf-16"))
    assert list(StyleBook.read([path]).styles) == ["Été"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"name,prompt\n\xff\xfe\xfa,x\n", "Save it as UTF-8"),
        (b"name,prompt\na," + b"x" * 200_000 + b"\n", "no valid CSV file"),
        (None, "Is a directory"),
    ],
)
def test_damaged_files_stop_nothing_and_are_explained_and_kept(tmp_path: Path, data: bytes | None, reason: str) -> None:
    path = tmp_path / "styles.csv"
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
    book = StyleBook.read([path])
    assert book.styles == {}
    assert len(book.notices) == 1 and reason in book.notices[0]
    book.save()
    assert path.is_dir() if data is None else path.read_bytes() == data  # nothing to write: it stays as it is
    book.with_style(Style("new", "x")).save()
    assert list(StyleBook.read([path]).styles) == ["new"]
    aside = path.with_name("styles.csv.corrupt-1")
    assert aside.is_dir() if data is None else aside.read_bytes() == data


def test_saving_keeps_the_old_file_beside(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "styles.csv"
    empty = StyleBook.read([path])
    first = empty.with_style(Style("one", 'say "hi", 猫\nnow', "b"))
    first.save()
    assert StyleBook.read([path]).styles == first.styles
    before = path.read_bytes()
    second = first.with_style(Style("one", "changed")).with_style(Style("two", "x"))
    second.save()
    assert path.with_name("styles.csv.bak").read_bytes() == before
    assert StyleBook.read([path]).styles == second.styles
    assert sorted(each.name for each in path.parent.iterdir()) == ["styles.csv", "styles.csv.bak"]
    assert empty.styles == {}


def test_a_change_goes_to_the_file_the_style_stands_in(tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    book = StyleBook([(one, [Style("a")]), (two, [Style("b")])])
    book = book.with_style(Style("b", "new")).with_style(Style("c"))
    book.save()
    assert list(StyleBook.read([one]).styles) == ["a", "c"]
    assert StyleBook.read([two]).styles == {"b": Style("b", "new")}
    assert list(book.without_style("b").styles) == ["a", "c"]
    with pytest.raises(UnknownNameError):
        book.without_style("z")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "styles.csv"
    book = StyleBook.read([path]).with_style(Style("one", "x"))
    book.save()
    before = path.read_bytes()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(OutputError, match="No space left"):
        book.with_style(Style("two")).save()
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["styles.csv"]


@pytest.mark.parametrize("name", ["", "  ", "# note"])
def test_names_that_would_vanish_are_refused(book: StyleBook, name: str) -> None:
    with pytest.raises(InvalidValueError, match="no name for a style"):
        book.with_style(Style(name))
