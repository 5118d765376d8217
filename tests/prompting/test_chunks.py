"""Chunks of 75 tokens, against the recordings and by properties."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.errors import InvalidValueError
from modules.prompting.chunks import Fix, PromptChunk, chunk_prompt, count_tokens, empty_chunk
from modules.prompting.counter import count_prompt
from modules.prompting.embeddings import EmbeddingTable
from modules.prompting.emphasis import Emphasis
from modules.prompting.tokens import ClipTokenizer
from tests.cases import for_each
from tests.growth import assert_linear
from tests.prompting.recordings import PARTS

CAT, COMMA = 2368, 267


def used(chunk: PromptChunk) -> list[int]:
    """The tokens between start and padding."""
    return [token for token in chunk.tokens[1:] if token != 49407]


@for_each("case", PARTS["tokens"], ids=lambda case: repr(case["text"][:30]))
def test_chunks_as_recorded(tokenizer: ClipTokenizer, embeddings: EmbeddingTable, case: dict[str, Any]) -> None:
    chunks = chunk_prompt(tokenizer, case["text"], embeddings=embeddings)
    found = [
        {
            "tokens": list(chunk.tokens),
            "multipliers": list(chunk.multipliers),
            "fixes": [[fix.offset, fix.name] for fix in chunk.fixes],
        }
        for chunk in chunks
    ]
    assert found == case["chunks"]
    assert count_tokens(chunks).count == case["count"]


def test_text_after_the_last_comma_moves_on(tokenizer: ClipTokenizer) -> None:
    text = "cat " * 60 + "," + " cat" * 20
    near, far = chunk_prompt(tokenizer, text), chunk_prompt(tokenizer, text, comma_backtrack=10)
    assert [len(used(chunk)) for chunk in near] == [61, 20]
    assert [len(used(chunk)) for chunk in far] == [75, 6]
    assert [len(used(chunk)) for chunk in chunk_prompt(tokenizer, text, comma_backtrack=0)] == [75, 6]


def test_a_comma_that_overflows_begins_the_next_chunk(tokenizer: ClipTokenizer) -> None:
    first, second = chunk_prompt(tokenizer, "cat, " + "cat " * 73 + ", cat", comma_backtrack=75)
    assert used(first) == [CAT, COMMA] + [CAT] * 73
    assert used(second) == [COMMA, CAT]


def test_an_embedding_that_does_not_fit_starts_a_chunk(tokenizer: ClipTokenizer, embeddings: EmbeddingTable) -> None:
    first, second = chunk_prompt(tokenizer, "cat " * 73 + "tiny-emb", embeddings=embeddings)
    assert len(used(first)) == 73
    assert (first.fixes, second.fixes) == ((), (Fix(0, "tiny-emb"),))


def test_an_embedding_behind_the_comma_takes_its_vectors_along(
    tokenizer: ClipTokenizer, embeddings: EmbeddingTable
) -> None:
    text = "tinypt " + "cat " * 69 + ", (tiny-emb:1.2) cat cat"
    first, second = chunk_prompt(tokenizer, text, embeddings=embeddings)
    assert first.fixes == (Fix(0, "tinypt"),)
    assert second.fixes == (Fix(0, "tiny-emb"),)
    assert second.tokens[1:6] == (0, 0, 0, CAT, CAT)
    assert second.multipliers[1:5] == (1.2, 1.2, 1.2, 1.0)


def test_longest_embedding_name_wins(tokenizer: ClipTokenizer) -> None:
    table = EmbeddingTable(tokenizer, {"red": torch.zeros(1, 4), "red cat": torch.zeros(2, 4)})
    (chunk,) = chunk_prompt(tokenizer, "a RED cat, red dog", embeddings=table)
    assert [fix.name for fix in chunk.fixes] == ["red cat", "red"]
    assert len(table) == 2


def test_too_many_vectors_are_refused(tokenizer: ClipTokenizer) -> None:
    table = EmbeddingTable(tokenizer, {"huge": torch.zeros(76, 4)})
    with pytest.raises(InvalidValueError, match="76 vectors"):
        chunk_prompt(tokenizer, "a huge cat", embeddings=table)


def test_padding_after_the_end_token_can_differ(tokenizer: ClipTokenizer) -> None:
    (chunk,) = chunk_prompt(tokenizer, "cat", pad_id=0)
    assert chunk.tokens == (49406, CAT, 49407, *[0] * 74)
    assert empty_chunk(tokenizer, pad_id=0).tokens == (49406, 49407, *[0] * 75)


def test_break_is_a_word_without_emphasis(tokenizer: ClipTokenizer) -> None:
    assert len(chunk_prompt(tokenizer, "a BREAK b", Emphasis.IGNORE)) == 2
    assert len(chunk_prompt(tokenizer, "a BREAK b", Emphasis.NONE)) == 1


def test_counter_counts_the_longest_step(tokenizer: ClipTokenizer) -> None:
    assert str(count_prompt(tokenizer, "", 20)) == "0/75"
    assert str(count_prompt(tokenizer, "a [cat:cat cat:3] # words\n<lora:x:1>", 20)) == "3/75"
    assert str(count_prompt(tokenizer, "a AND b b", 20)) == "2/75"
    assert str(count_prompt(tokenizer, "a AND b b", 20, is_negative=True)) == "4/75"
    assert str(count_prompt(tokenizer, "a BREAK b", 20)) == "76/150"
    assert str(count_prompt(tokenizer, "a", 20, apply_styles=lambda text: text + ", b")) == "3/75"


@given(
    text=st.lists(st.sampled_from(["cat ", ", ", "(red:1.2) ", "BREAK ", "tiny-emb ", "[", ")", "猫"])).map("".join),
    backtrack=st.integers(0, 75),
    repeat=st.integers(1, 9),
)
def test_chunks_hold_all_tokens_in_order(
    tokenizer: ClipTokenizer, embeddings: EmbeddingTable, text: str, backtrack: int, repeat: int
) -> None:
    chunks = chunk_prompt(tokenizer, text * repeat, comma_backtrack=backtrack, embeddings=embeddings)
    whole = chunk_prompt(tokenizer, text * repeat, comma_backtrack=0, embeddings=embeddings)
    assert all(len(chunk.tokens) == len(chunk.multipliers) == 77 for chunk in chunks)
    assert all(chunk.tokens[0] == 49406 and chunk.tokens[-1] == 49407 for chunk in chunks)
    assert all(chunk.tokens[fix.offset + 1] == 0 for chunk in chunks for fix in chunk.fixes)
    assert [token for chunk in chunks for token in used(chunk)] == [token for chunk in whole for token in used(chunk)]


@pytest.mark.parametrize("unit", ["cat, ", "(a", "a", "🐱", "\0", "שלום ", "(red:1.2), [b] ", "&", "BREAK "])
def test_time_grows_with_the_length_and_no_faster(tokenizer: ClipTokenizer, unit: str) -> None:
    assert_linear(lambda text: chunk_prompt(tokenizer, text), unit)
