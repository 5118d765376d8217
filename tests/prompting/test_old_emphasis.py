"""The emphasis of the first web UIs: brackets weigh token by token, and nothing comes after 75 tokens."""

import pytest
import torch

from modules.prompting.chunks import CHUNK_LENGTH, chunk_prompt
from modules.prompting.counter import count_prompt
from modules.prompting.emphasis import Emphasis
from modules.prompting.encode import TextOptions, TextTower, chunks_of
from modules.prompting.old_emphasis import bracket_weights, chunk_prompt_old
from modules.prompting.tokens import ClipTokenizer
from tests.prompting.encoding import encode_group

OLD = TextOptions(old_emphasis=True)


def weights_of(tokenizer: ClipTokenizer, text: str, emphasis: Emphasis = Emphasis.ORIGINAL) -> dict[int, float]:
    """The weight of each token that is left, by its id."""
    chunk = chunk_prompt_old(tokenizer, tokenizer.bracket_weights, text, emphasis)
    used = slice(1, 1 + chunk.counted)
    return dict(zip(chunk.tokens[used], chunk.multipliers[used], strict=True))


def test_every_bracket_of_a_token_counts() -> None:
    weights = bracket_weights({"cat</w>": 0, "((</w>": 1, "),</w>": 2, "[": 3, "])": 4, "()": 5})
    assert weights == pytest.approx({1: 1.21, 2: 1 / 1.1, 3: 1 / 1.1})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cat", [1, 1]),
        ("a (cat) sat", [1, 1.1, 1]),
        ("((a)) [cat] sat", [1.21, 1 / 1.1, 1]),
        ("a (cat sat", [1, 1.1, 1.1]),
        ("a) cat", [1, 1 / 1.1]),
    ],
)
def test_brackets_weigh_what_follows_them(tokenizer: ClipTokenizer, text: str, expected: list[float]) -> None:
    assert list(weights_of(tokenizer, text).values()) == pytest.approx(expected)


def test_written_weights_and_escapes_are_plain_text(tokenizer: ClipTokenizer) -> None:
    (number,) = tokenizer.encode("5")
    assert weights_of(tokenizer, "(cat:1.5)")[number] == pytest.approx(1.1)
    (backslash,) = tokenizer.encode("\\")
    assert backslash in weights_of(tokenizer, "\\ (cat\\ )")


def test_emphasis_none_keeps_brackets_as_tokens(tokenizer: ClipTokenizer) -> None:
    kept = weights_of(tokenizer, "a ( cat )", Emphasis.NONE)
    assert len(kept) == 4 and set(kept.values()) == {1.0}


def test_a_long_prompt_is_one_chunk_cut_off(tokenizer: ClipTokenizer) -> None:
    text = "cat, " * 100
    (chunk,) = chunks_of(tokenizer, text, OLD)
    assert len(chunk.tokens) == len(chunk.multipliers) == CHUNK_LENGTH + 2
    assert chunk.tokens[1:-1] == tuple(tokenizer.encode(text))[:CHUNK_LENGTH]
    assert chunk.tokens[-1] == tokenizer.end_id
    assert str(count_prompt(tokenizer, text, 20, OLD)) == "75/75"


@pytest.mark.parametrize("text", ["", "a cat on a mat, tiny-emb, at night"])
def test_without_brackets_it_encodes_as_the_new_way(tower: TextTower, text: str) -> None:
    (old,) = chunks_of(tower.tokenizer, text, OLD, tower.embeddings)
    assert old == chunk_prompt(tower.tokenizer, text, embeddings=tower.embeddings)[0]
    new_way, old_way = (encode_group(tower, [text], options).hidden for options in (TextOptions(), OLD))
    assert torch.equal(old_way, new_way)


def test_brackets_change_the_encoding_as_a_written_weight_of_the_same_value_would(tower: TextTower) -> None:
    old = encode_group(tower, ["a (red) cat"], OLD).hidden
    torch.testing.assert_close(old, encode_group(tower, ["a (red:1.1) cat"], TextOptions()).hidden)


def test_an_embedding_that_only_begins_before_the_end_keeps_its_first_vectors(tower: TextTower) -> None:
    text = "cat " * 74 + "tiny-emb"  # three vectors, of which the last has no room even beyond the end token
    (chunk,) = chunks_of(tower.tokenizer, text, OLD, tower.embeddings)
    assert [fix.offset for fix in chunk.fixes] == [74]
    assert encode_group(tower, [text], OLD).hidden.shape[1] == CHUNK_LENGTH + 2
    (chunk,) = chunks_of(tower.tokenizer, "cat " * 75 + "tiny-emb", OLD, tower.embeddings)
    assert chunk.fixes == ()
