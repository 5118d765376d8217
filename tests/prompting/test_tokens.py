"""Token ids against the recordings, and the vocabulary's sources."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.errors import CheckpointError
from modules.prompting import vocabulary
from modules.prompting.cleanup import clean_text
from modules.prompting.tokens import _ASCII_WORD, _WORD, ClipTokenizer
from tests.cases import for_each
from tests.prompting.recordings import MODELS, PARTS


@for_each("case", PARTS["tokens"], ids=lambda case: repr(case["text"][:30]))
def test_ids_as_recorded(tokenizer: ClipTokenizer, case: dict[str, Any]) -> None:
    assert list(tokenizer.encode(case["text"])) == case["ids"]


def test_the_vocabulary_is_that_of_transformers() -> None:
    own = vocabulary.read_vocabulary()
    folder = MODELS / "tiny-clip-text"
    assert len(own.ids) == vocabulary.VOCABULARY_SIZE
    assert own.ids == json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    merges = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    assert [" ".join(pair) for pair in own.merges] == [line for line in merges if line and line[:8] != "#version"]


def test_special_tokens_in_text_are_single_tokens(tokenizer: ClipTokenizer) -> None:
    assert tokenizer.encode("a<|endoftext|>b") == (320, 49407, 321)


def test_a_missing_or_damaged_vocabulary_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vocabulary, "FILE", tmp_path / "vocabulary.txt.gz")
    with pytest.raises(CheckpointError, match="restore the file"):
        vocabulary.read_vocabulary()
    vocabulary.FILE.write_bytes(b"no gzip")
    with pytest.raises(CheckpointError, match=r"data/vocabulary\.txt\.gz"):
        vocabulary.read_vocabulary()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("“curly” ‘quotes’", "\"curly\" 'quotes'"),
        ("ﬁ ﬃ ŉ ﬅ", "fi ffi 'n ſt"),
        ("ＡＢＣ　①", "ABC ①"),
        ("a &amp; b", "a & b"),
        ("&amp; <b>", "&amp; <b>"),
        ("nul\0 bell\a \ufeff", "nul bell "),
        ("e\u0301", "é"),
        ("\ud83d\ude00 \ud800", "😀 \ufffd"),
        ("\x1b[31mred", "red"),
    ],
)
def test_characters_have_one_spelling(text: str, expected: str) -> None:
    assert clean_text(text) == expected


@given(st.text(st.characters(), max_size=50))
def test_any_text_has_ids(tokenizer: ClipTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert all(0 <= token < vocabulary.VOCABULARY_SIZE for token in ids)
    assert tokenizer.encode(text) == ids


@given(st.text(st.characters(codec="ascii"), max_size=50) | st.text("'sdre<|>ndoftx 1,", max_size=30))
def test_ascii_words_are_the_words_of_any_text(text: str) -> None:
    assert _ASCII_WORD.findall(text.lower()) == _WORD.findall(text.lower())


def test_remembered_words_are_bounded(tokenizer: ClipTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ClipTokenizer(vocabulary.read_vocabulary())
    monkeypatch.setattr("modules.prompting.tokens._WORDS_REMEMBERED", 10)
    text = " ".join(f"word{chr(97 + index)}" for index in range(26))
    assert small.encode(text) == tokenizer.encode(text)
    assert len(small._words) <= 10
    monkeypatch.setattr("modules.prompting.tokens._PIECES_REMEMBERED", 2)
    for piece in ("a", "b", "c", "a" * 2_000):
        small.encode(piece)
    assert len(small._pieces) <= 2
